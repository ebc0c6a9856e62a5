-- From now on, every process that comes to the point is held there ('hold'), meets an
-- error ('error'), or ends as if it was terminated: at once ('end'), or when it is released
-- ('hold_end').
CREATE FUNCTION injection_attach(point text, action text DEFAULT 'hold') RETURNS void
LANGUAGE C STRICT AS 'MODULE_PATHNAME';

-- Whoever is held there stays; others pass.
CREATE FUNCTION injection_detach(point text) RETURNS void
LANGUAGE C STRICT AS 'MODULE_PATHNAME';

-- Lets all go on that are held there, and whoever passed too late to notice that the point was
-- detached, until it is attached again.
CREATE FUNCTION injection_open(point text) RETURNS void
LANGUAGE C STRICT AS 'MODULE_PATHNAME';

-- Lets a process that is held go on.
CREATE FUNCTION injection_release(pid int) RETURNS void
LANGUAGE C STRICT AS 'MODULE_PATHNAME';
