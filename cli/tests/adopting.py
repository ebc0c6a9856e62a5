"""Subscriptions under load that are moved from one slot to another."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from conftest import CLI, Pair, Weft, clean_environment
from servers import Server
from weft_cli.exit_code import ExitCode


def allow_plugin(pair: Pair, allowed: bool = True) -> None:
    """In this database only, since other tests use the same servers."""
    libraries = "pgoutput, test_decoding, weft" if allowed else "pgoutput, test_decoding"
    pair.publisher.query(
        f"ALTER DATABASE {pair.publisher.database} SET output_plugin_libraries = {libraries}"
    )


def subscribe(pair: Pair, options: str = "streaming = parallel") -> None:
    """Some tables, and a subscription "s" that uses pgoutput."""
    for server in (pair.publisher, pair.subscriber):
        server.query("CREATE TABLE history (client int, number int, filler text)")
        server.query("CREATE TABLE account (id int PRIMARY KEY, balance int NOT NULL)")
    # So that open transactions are streamed.
    pair.publisher.query(
        f"ALTER DATABASE {pair.publisher.database} SET logical_decoding_work_mem = '64kB'"
    )
    allow_plugin(pair, False)
    pair.publisher.query("INSERT INTO account SELECT g, 0 FROM generate_series(1, 100) g")
    pair.publisher.query("CREATE PUBLICATION p FOR ALL TABLES")
    slot = f"slot_{pair.publisher.database}"
    pair.subscriber.query(
        f"CREATE SUBSCRIPTION s CONNECTION '{pair.publisher.conninfo}' PUBLICATION p"
        f" WITH (slot_name = {slot}, {options})"
    )
    catch_up(pair)
    allow_plugin(pair)


def catch_up(pair: Pair) -> None:
    pair.subscriber.query("SELECT weft.wait_for_subscription('s', '60 s')")


def slots(pair: Pair) -> list[tuple[str, str]]:
    return [
        (row.slot_name, row.plugin)
        for row in pair.publisher.query(
            "SELECT slot_name, plugin::text FROM pg_replication_slots"
            " WHERE database = current_database() AND slot_name !~ '_sync_' ORDER BY 1"
        )
    ]


def contents(server: Server) -> dict[str, Any]:
    return {
        table: server.query(f"SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {table} t")[0]
        for table in ("history", "account")
    }


def copies(pair: Pair) -> Any:
    """What would be different if a table were copied again."""
    return (
        pair.subscriber.query(
            "SELECT srrelid, srsubstate::text, srsublsn::text, pg_relation_filenode(srrelid)"
            " FROM pg_subscription_rel JOIN pg_subscription s ON s.oid = srsubid"
            " JOIN pg_database d ON d.oid = s.subdbid"
            " WHERE d.datname = current_database() ORDER BY 1"
        ),
        pair.subscriber.log.read_text(errors="replace").count("table synchronization worker"),
    )


@contextmanager
def load(server: Server) -> Iterator[None]:
    """Short transactions, and long ones that are open while others commit."""
    stop = threading.Event()

    def client(number: int) -> None:
        count = 0
        while not stop.is_set():
            # The server may have been killed.
            with suppress(psycopg.Error), server.connect(autocommit=False) as connection:
                while not stop.is_set():
                    count += 1
                    connection.execute("INSERT INTO history VALUES (%s, %s, 'x')", [number, count])
                    connection.execute(
                        "UPDATE account SET balance = balance + 1 WHERE id = %s",
                        [number * 10 + count % 10],
                    )
                    if number == 0:
                        connection.execute(
                            "INSERT INTO history SELECT 0, g, repeat('y', 200)"
                            " FROM generate_series(1, 500) g"
                        )
                        stop.wait(0.7)
                    connection.commit()
                    stop.wait(0.02)
            stop.wait(0.05)

    threads = [threading.Thread(target=client, args=[number]) for number in range(1, 4)]
    threads.append(threading.Thread(target=client, args=[0]))
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def interrupted(pair: Pair, number: int, how: str, *arguments: str) -> subprocess.Popen[str]:
    stop = {"WEFT_STOP_AT": str(number), "WEFT_STOP_HOW": how}
    return subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("interrupted.py")),
            *arguments,
            "-d",
            pair.subscriber.conninfo,
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=clean_environment() | stop | {"PYTHONPATH": str(CLI)},
    )


def adopt_fully(pair: Pair, weft: Weft, plugin: str) -> None:
    done = weft("adopt", "s", "--plugin", plugin, "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.FINE, done.stdout + done.stderr
    found = slots(pair)
    assert [each for _, each in found] == [plugin], done.stdout + done.stderr
    (subscription,) = pair.subscriber.query(
        "SELECT subenabled, subslotname FROM pg_subscription WHERE subname = 's'"
    )
    assert subscription == (True, found[0][0])


def check_equal(pair: Pair, copied: Any) -> None:
    catch_up(pair)
    assert contents(pair.subscriber) == contents(pair.publisher)
    assert contents(pair.subscriber)["history"].count > 1000
    assert copies(pair) == copied
