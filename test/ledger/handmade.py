"""A switch-over by hand, in SQL, with defects on demand.

It proves nothing about Weft: the harness is tried with it.  Without a defect, no finding may
be made; with each defect, the harness must find what it causes.
"""

import time
from collections.abc import Sequence

from schema import SEQUENCES
from servers import Server

DEFECTS = (
    "leaky fence: no_key",
    "leaky fence: UPDATE",
    "leaky fence: DELETE",
    "leaky fence: TRUNCATE",
    "leaky fence: by_list_2",
    "sequence: by_serial_id_seq",
    "sequence: by_identity_id_seq",
    "sequence: shared",
    "reverse too late",
    "opened too early",
    "stopped too early",
    "old side not closed",
    "never opened",
)

FENCE = """
CREATE SCHEMA IF NOT EXISTS fence;
CREATE OR REPLACE FUNCTION fence.refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'writes have moved' USING ERRCODE = 'read_only_sql_transaction';
END $$;
"""


def fenced_tables(server: Server) -> list[str]:
    return [
        row.name
        for row in server.query(
            "SELECT format('%I.%I', nspname, relname) AS name FROM pg_class c JOIN pg_namespace n"
            " ON n.oid = relnamespace WHERE relkind IN ('r', 'p') AND nspname IN"
            " ('ledger', 'public') ORDER BY 1"
        )
    ]


def close(server: Server, defect: str = "") -> None:
    """Refuses writes of ordinary sessions, after all that have begun have ended."""
    server.query(FENCE)
    leak = defect.removeprefix("leaky fence: ") if defect.startswith("leaky") else ""
    events = [e for e in ("INSERT", "UPDATE", "DELETE", "TRUNCATE") if e != leak]
    # One table at a time: whoever locks several would be in a deadlock with a transaction that
    # writes to several.  CREATE TRIGGER waits for all that have written to its table.
    for table in fenced_tables(server):
        if table != f"ledger.{leak}":
            server.query(
                f"CREATE OR REPLACE TRIGGER fence BEFORE {' OR '.join(events)} ON {table}"
                " FOR EACH STATEMENT EXECUTE FUNCTION fence.refuse()"
            )


def open_again(server: Server) -> None:
    # One table at a time here, too.
    for table in fenced_tables(server):
        server.query(f"DROP TRIGGER IF EXISTS fence ON {table}")
    server.query("DROP SCHEMA IF EXISTS fence CASCADE")


def follow(follower: Server, leader: Server, name: str) -> None:
    """The follower gets what the leader commits from now on."""
    leader.query(f"SELECT pg_create_logical_replication_slot('{name}', 'pgoutput')")
    follower.query(
        f"CREATE SUBSCRIPTION {name} CONNECTION '{leader.linked_conninfo}' PUBLICATION p"
        f" WITH (create_slot = false, slot_name = '{name}', copy_data = false, origin = none)"
        if follower.major >= 16
        else f"CREATE SUBSCRIPTION {name} CONNECTION '{leader.linked_conninfo}' PUBLICATION p"
        f" WITH (create_slot = false, slot_name = '{name}', copy_data = false)"
    )


def subscribe(servers: Sequence[Server], name: str = "forward") -> None:
    """The first subscription, from side 0 to side 1, with both sides equal."""
    for server in servers:
        server.query("CREATE PUBLICATION p FOR TABLES IN SCHEMA ledger, public")
    follow(servers[1], servers[0], name)
    close(servers[1])


def switch(
    servers: Sequence[Server], writing: int, subscription: str, reverse: str, defect: str = ""
) -> None:
    """Writing moves from one side to the other; the old side follows the new one.

    "subscription" is the one from the writing side to the other, "reverse" the name of the
    one that replaces it.
    """
    old, new = servers[writing], servers[1 - writing]
    if defect == "stopped too early":
        new.query(f"ALTER SUBSCRIPTION {subscription} DISABLE")
    if defect == "opened too early":
        open_again(new)
        time.sleep(0.2)
    if defect != "old side not closed":
        close(old, defect)
    if defect != "stopped too early":
        position = old.value("SELECT pg_current_wal_insert_lsn()")
        # an asynchronous commit at the end of the log is not sent before it is flushed
        old.query("CREATE TEMP TABLE flush ()")
        old.wait_until(
            "SELECT coalesce(bool_or(replay_lsn >= %s), false) FROM pg_stat_replication"
            f" WHERE application_name = '{subscription}'" % f"'{position}'"
        )
    for name in SEQUENCES:
        if defect != f"sequence: {name}":
            value = old.value(f"SELECT last_value FROM ledger.{name}")
            new.query(f"SELECT setval('ledger.{name}', {value} + 1000)")
    new.query(f"DROP SUBSCRIPTION {subscription}")
    if defect == "reverse too late":
        open_again(new)
        time.sleep(0.2)
    follow(old, new, reverse)
    if defect != "never opened":
        open_again(new)


def clean(servers: Sequence[Server]) -> None:
    """Nothing is left of subscriptions and slots."""
    for server in servers:
        for row in server.query(
            "SELECT subname FROM pg_subscription WHERE subdbid ="
            " (SELECT oid FROM pg_database WHERE datname = current_database())"
        ):
            with server.connect() as connection:
                connection.execute(f"ALTER SUBSCRIPTION {row.subname} DISABLE")
                connection.execute(f"ALTER SUBSCRIPTION {row.subname} SET (slot_name = NONE)")
                connection.execute(f"DROP SUBSCRIPTION {row.subname}")
    for server in servers:
        server.wait_until(
            "SELECT count(*) = 0 FROM pg_replication_slots WHERE active", "inactive slots"
        )
        server.query("SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots")
