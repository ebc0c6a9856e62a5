CREATE EXTENSION weft_test;
SELECT * FROM weft_test('dependency');
DROP EXTENSION weft_test;
