CREATE EXTENSION weft_test;
SELECT * FROM weft_test('key_prefix');
DROP EXTENSION weft_test;
