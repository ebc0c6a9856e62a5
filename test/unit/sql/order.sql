CREATE EXTENSION weft_test;
SELECT * FROM weft_test('order');
DROP EXTENSION weft_test;
