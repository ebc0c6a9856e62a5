CREATE EXTENSION weft_test;
SELECT * FROM weft_test('spool');
SELECT * FROM weft_test('spool_transactions');
SELECT * FROM weft_test('spool_transactions');
DROP EXTENSION weft_test;
