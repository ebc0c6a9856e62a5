CREATE EXTENSION weft_test;
SELECT * FROM weft_test('spool');
DROP EXTENSION weft_test;
