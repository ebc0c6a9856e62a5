-- num_writers of CREATE and ALTER SUBSCRIPTION
-- what the server says of subscriptions that do not connect depends on its version
SET client_min_messages = error;
CREATE EXTENSION weft;
CREATE VIEW labels AS
	SELECT s.subname, l.label
	FROM pg_shseclabel l JOIN pg_subscription s ON s.oid = l.objoid
	WHERE l.provider = 'weft' AND l.classoid = 'pg_subscription'::regclass
	ORDER BY 1;

-- nothing is stored without the option
CREATE SUBSCRIPTION plain CONNECTION 'dbname=nosuch' PUBLICATION p
	WITH (connect = false);
SELECT * FROM labels;

CREATE SUBSCRIPTION six CONNECTION 'dbname=nosuch' PUBLICATION p
	WITH (num_writers = 6, connect = false);
SELECT * FROM labels;

-- out of range, not a number, twice: nothing is created
CREATE SUBSCRIPTION bad CONNECTION 'dbname=nosuch' PUBLICATION p
	WITH (connect = false, num_writers = -1);
CREATE SUBSCRIPTION bad CONNECTION 'dbname=nosuch' PUBLICATION p
	WITH (connect = false, num_writers = 65);
CREATE SUBSCRIPTION bad CONNECTION 'dbname=nosuch' PUBLICATION p
	WITH (connect = false, num_writers = many);
CREATE SUBSCRIPTION bad CONNECTION 'dbname=nosuch' PUBLICATION p
	WITH (connect = false, num_writers);
CREATE SUBSCRIPTION bad CONNECTION 'dbname=nosuch' PUBLICATION p
	WITH (connect = false, num_writers = 1, num_writers = 2);
-- an unknown option is still an error
CREATE SUBSCRIPTION bad CONNECTION 'dbname=nosuch' PUBLICATION p
	WITH (connect = false, num_writers = 1, num_readers = 2);
SELECT subname FROM pg_subscription ORDER BY 1;

-- ALTER, alone and with other options
ALTER SUBSCRIPTION six SET (num_writers = 0);
ALTER SUBSCRIPTION plain SET (num_writers = 64, binary = true);
SELECT * FROM labels;
SELECT subname, subbinary FROM pg_subscription ORDER BY 1;
ALTER SUBSCRIPTION six SET (num_writers = 65);
ALTER SUBSCRIPTION six SET (num_writers = 3, binary = maybe);
SELECT * FROM labels;

-- rollback restores the old value
BEGIN;
ALTER SUBSCRIPTION six SET (num_writers = 5);
SELECT * FROM labels;
ROLLBACK;
SELECT * FROM labels;

-- the same statement executed repeatedly, as PL/pgSQL does it
DO $$
BEGIN
	FOR i IN 1..2 LOOP
		ALTER SUBSCRIPTION six SET (num_writers = 7);
	END LOOP;
END
$$;
SELECT * FROM labels;

-- the statement that a restore executes
SECURITY LABEL FOR weft ON SUBSCRIPTION six IS 'num_writers=2';
SECURITY LABEL FOR weft ON SUBSCRIPTION six IS 'num_writers=65';
SECURITY LABEL FOR weft ON SUBSCRIPTION six IS 'num_writers=';
SECURITY LABEL FOR weft ON SUBSCRIPTION six IS 'num_writers=2x';
SECURITY LABEL FOR weft ON SUBSCRIPTION six IS 'secret';
SECURITY LABEL FOR weft ON VIEW labels IS 'num_writers=2';
SELECT * FROM labels;
SECURITY LABEL FOR weft ON SUBSCRIPTION plain IS NULL;
SELECT * FROM labels;

-- the label is dropped with the subscription
ALTER SUBSCRIPTION six RENAME TO seven;
SELECT * FROM labels;
ALTER SUBSCRIPTION seven SET (slot_name = NONE);
ALTER SUBSCRIPTION plain SET (slot_name = NONE);
DROP SUBSCRIPTION seven;
DROP SUBSCRIPTION plain;
SELECT * FROM labels;
SELECT count(*) FROM pg_shseclabel WHERE provider = 'weft';

DROP VIEW labels;
DROP EXTENSION weft;
