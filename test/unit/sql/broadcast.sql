CREATE EXTENSION weft_test;
SELECT * FROM weft_test('broadcast');
DROP EXTENSION weft_test;
