CREATE EXTENSION weft_test;
SELECT * FROM weft_test('tuning');
DROP EXTENSION weft_test;
