CREATE EXTENSION weft_test;
SELECT * FROM weft_test('tuning_trial');
DROP EXTENSION weft_test;
