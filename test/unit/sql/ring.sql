CREATE EXTENSION weft_test;
SELECT * FROM weft_test('ring');
DROP EXTENSION weft_test;
