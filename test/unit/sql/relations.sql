CREATE EXTENSION weft_test;
SELECT * FROM weft_test('relations');
DROP EXTENSION weft_test;
