-- The configuration parameters
SELECT name, setting, unit, min_val, max_val, boot_val, context
	FROM pg_settings WHERE name ~ '^weft\.' ORDER BY name;

-- out of range
ALTER SYSTEM SET weft.writers_per_subscription = 65;
ALTER SYSTEM SET weft.writers_per_subscription = -1;
ALTER SYSTEM SET weft.ring_size = '2GB';
ALTER SYSTEM SET weft.max_writers_per_subscription = 0;

-- a session cannot set them, and there are no others with that prefix
SET weft.writers_per_subscription = 2;
SET weft.ring_size = '1MB';
SET weft.nosuch = 1;
