CREATE EXTENSION weft_test;
SELECT * FROM weft_test('transaction');
DROP EXTENSION weft_test;
