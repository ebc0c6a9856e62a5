CREATE EXTENSION weft_test;
SELECT * FROM weft_test('wire');
DROP EXTENSION weft_test;
