CREATE EXTENSION weft_test;
SELECT * FROM weft_test('lookup');
DROP EXTENSION weft_test;
