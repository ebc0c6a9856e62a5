CREATE EXTENSION weft_test;
SELECT * FROM weft_test('pace');
DROP EXTENSION weft_test;
