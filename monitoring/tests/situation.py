"""Two servers on which everything that is measured happens at the same time, and stays so.

- main: writers apply a load; a large transaction is streamed and stays open; a comparison was made
- copying: the initial copy of a table is held in the middle of its rows
- conflicts: a change conflicted with a local one
- broken: an error has disabled it
- a node group of two other databases, one on each server
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from servers import Server, own_programs, wait_for
from trial import pair

TREE = Path(__file__).resolve().parents[2]
MONITORING = TREE / "monitoring"

# logged in by the exporters, with the rights that docs/monitoring.md names
ROLE = "weft_monitor"
# the subscription's database, and the group's, on each server
DATABASE = "shop"
GROUP_DATABASES = ("group_a", "group_b")
# the copy is held by this lock
HOLD = 1

SETTINGS = """
    fsync = off
    track_commit_timestamp = on
    logical_decoding_work_mem = 64kB
    max_slot_wal_keep_size = 100GB
    weft.min_parallel_copy_size = 0
    """

TABLES = """
    CREATE TABLE item (id integer PRIMARY KEY, v integer);
    CREATE TABLE large (id integer PRIMARY KEY, v text);
    CREATE TABLE held (id integer PRIMARY KEY, v text);
    CREATE TABLE both_write (id integer PRIMARY KEY, v text);
    CREATE TABLE checked (id integer PRIMARY KEY, v integer);
    """
PUBLICATIONS = """
    INSERT INTO held SELECT i, repeat('x', 500) FROM generate_series(1, 40000) i;
    ANALYZE held;
    CREATE PUBLICATION main FOR TABLE item, large;
    CREATE PUBLICATION copying FOR TABLE held;
    CREATE PUBLICATION conflicts FOR TABLE both_write;
    CREATE PUBLICATION broken FOR TABLE checked;
    """
# A trigger would let the server's own code copy the table, which does not know how much there is.
SUBSCRIBER = f"""
    CREATE EXTENSION weft;
    ALTER TABLE checked ADD CHECK (v > 0);
    CREATE FUNCTION hold(id integer) RETURNS boolean
    IMMUTABLE PARALLEL SAFE LANGUAGE plpgsql AS $$
    BEGIN
        IF id = 30000 THEN
            PERFORM pg_catalog.pg_advisory_xact_lock_shared({HOLD});
        END IF;
        RETURN true;
    END $$;
    ALTER TABLE held ADD CHECK (hold(id));
    INSERT INTO both_write VALUES (1, 'here');
    """
SUBSCRIPTIONS = {
    "main": "streaming = parallel, num_writers = 2",
    "copying": "",
    "conflicts": "detect_conflicts = on, copy_data = false",
    "broken": "disable_on_error = true, copy_data = false",
}


def plugin_setting() -> str:
    """Lets slots use Weft's plugin on servers that restrict plugins."""
    text = subprocess.check_output([own_programs() / "postgres", "--describe-config"], text=True)
    known = "\noutput_plugin_libraries\t" in text
    return "output_plugin_libraries = 'pgoutput, test_decoding, weft'\n" if known else ""


class Situation:
    def __init__(self, publisher: Server, subscriber: Server):
        self.publisher = publisher
        self.subscriber = subscriber
        self.sessions: list[psycopg.Connection[tuple[object, ...]]] = []
        self.items = 0

    def open_session(self, server: Server) -> "psycopg.Connection[tuple[object, ...]]":
        self.sessions.append(psycopg.connect(server.conninfo))
        return self.sessions[-1]

    def load(self, number: int = 50) -> None:
        """Some transactions, so that rates are not zero."""
        with self.publisher.connect() as connection:
            for _ in range(number):
                self.items += 1
                connection.execute("INSERT INTO item VALUES (%s, 0)", [self.items])
            connection.execute("UPDATE item SET v = v + 1 WHERE id = %s", [self.items])
            connection.execute("DELETE FROM item WHERE id = %s", [self.items])

    def create(self) -> None:
        for server in (self.publisher, self.subscriber):
            server.query(f"CREATE ROLE {ROLE} LOGIN; GRANT pg_monitor TO {ROLE}")
        self.create_group()
        for server in (self.publisher, self.subscriber):
            server.use_new_database(DATABASE)
            server.query(TABLES)
        self.publisher.query(PUBLICATIONS)
        self.subscriber.query(SUBSCRIBER)
        self.open_session(self.subscriber).execute(f"SELECT pg_advisory_lock({HOLD})")
        for name, options in SUBSCRIPTIONS.items():
            self.subscriber.query(
                f"CREATE SUBSCRIPTION {name} CONNECTION '{self.publisher.conninfo}'"
                f" PUBLICATION {name}" + (f" WITH ({options})" if options else "")
            )
        self.subscriber.query("SELECT weft.wait_for_subscription('main', '60 s')")
        self.load()
        self.subscriber.query("SELECT weft.wait_for_subscription('main', '60 s')")
        self.subscriber.query("CALL weft.compare_subscription('main')")
        self.publisher.query("INSERT INTO both_write VALUES (1, 'there')")
        self.publisher.query("INSERT INTO checked VALUES (1, 0)")
        self.stream()
        self.wait_until_everything_happens()

    def create_group(self) -> None:
        target = ""
        for server, name in zip((self.publisher, self.subscriber), GROUP_DATABASES, strict=True):
            server.use_new_database(name)
            server.query("CREATE EXTENSION weft")
            server.query("SELECT weft.create_node(%s, %s)", name, server.conninfo)
            if target:
                server.query("SELECT weft.join_node_group(%s, 'g')", target)
                server.query("SELECT weft.wait_for_join_completion('60 s')")
            else:
                server.query("SELECT weft.create_node_group('g')")
                target = server.conninfo

    def stream(self) -> None:
        """A transaction that is sent while it is in progress, and stays open."""
        session = self.open_session(self.publisher)
        session.execute("INSERT INTO large SELECT i, 'x' FROM generate_series(1, 5000) i")
        # decoding goes on only when WAL is written
        self.subscriber.wait_until("SELECT count(*) > 0 FROM weft.stat_stream")

    def wait_until_everything_happens(self) -> None:
        for condition in (
            "SELECT EXISTS (SELECT FROM weft.stat_conflict)",
            "SELECT NOT subenabled FROM pg_subscription WHERE subname = 'broken'",
            "SELECT EXISTS (SELECT FROM weft.copy_progress WHERE bytes_done > 1000000)",
            "SELECT sum(inserts) >= 50 FROM weft.stat_relation",
        ):
            self.subscriber.wait_until(condition)
        wait_for(
            lambda: (
                not self.publisher.value(
                    "SELECT active FROM pg_replication_slots WHERE slot_name = 'broken'"
                )
            ),
            "the slot of the broken subscription to be released",
        )

    def close(self) -> None:
        for session in self.sessions:
            session.close()


@contextmanager
def situation() -> Iterator[Situation]:
    settings = SETTINGS + plugin_setting()
    with pair(old_weft=True, settings=settings, names=("pub", "sub")) as (publisher, subscriber):
        made = Situation(publisher, subscriber)
        try:
            made.create()
            yield made
        except BaseException:
            for server in (publisher, subscriber):
                print(f"log of {server.name}:", *server.complaints(), sep="\n    ")
            raise
        finally:
            made.close()


def connect_as_role(server: Server, database: str) -> "psycopg.Connection[tuple[object, ...]]":
    """As an exporter connects; CloudNativePG's has these settings."""
    return psycopg.connect(
        f"host={server.directory} port=5432 user={ROLE} dbname={database}",
        autocommit=True,
        options="-c default_transaction_read_only=on -c search_path=pg_catalog,public,pg_temp",
    )
