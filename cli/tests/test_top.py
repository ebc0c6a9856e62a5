"""weft top: its figures, its pages and keys, and its other forms."""

import json
import signal
from typing import Any

import pytest

from conftest import Pair, Weft, run_here
from live_terminal import ESCAPE, Terminal
from servers import wait_for
from weft_cli.exit_code import ExitCode


def top_of(pair: Pair) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run_here("top", "-o", "json", server=pair.subscriber)[1])
    return document


def test_json(pair: Pair) -> None:
    pair.subscribe()
    pair.publisher.query("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 100) g")
    pair.wait_for_apply()
    document = top_of(pair)
    assert (document["schema"], document["kind"]) == (1, "top")
    assert set(document) == {
        "schema", "kind", "subscriptions", "writers", "tables", "streams", "conflicts",
        "latest_conflicts", "copies",
    }  # fmt: skip
    assert len(document["writers"]) == 4
    assert set(document["writers"][0]) == {
        "subid", "subscription", "writer", "pid", "state", "transactions", "changes",
        "misspeculations", "remote_lsn", "transaction_rate", "change_rate", "wait",
    }  # fmt: skip
    assert sum(writer["changes"] for writer in document["writers"]) == 100

    def counted() -> Any:
        """Counters of tables lag a little."""
        return [t for t in top_of(pair)["tables"] if t["rows"] == 100]

    (table,) = wait_for(counted, "the counters of the table")
    assert (table["table"], table["path"], table["inserts"]) == ("public.t", "fast", 100)


def test_slow_path_and_lock(pair: Pair) -> None:
    """A table off the fast path is shown with the reason, and a writer with what it waits for."""
    pair.subscribe()
    pair.subscriber.query(
        "CREATE FUNCTION nothing() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN RETURN NULL; END'"
    )
    pair.subscriber.query(
        "CREATE TRIGGER nothing AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION nothing()"
    )
    pair.subscriber.query("ALTER TABLE t ENABLE ALWAYS TRIGGER nothing")
    pair.publisher.query("INSERT INTO t VALUES (1, 'x')")
    pair.wait_for_apply()
    (table,) = wait_for(lambda: top_of(pair)["tables"], "the counters of the table")
    assert table["path"] == "general"
    assert "trigger" in table["reason"]

    with pair.subscriber.connect(autocommit=False) as connection:
        connection.execute("LOCK TABLE t")
        pair.publisher.query("INSERT INTO t VALUES (2, 'x')")

        def waiting() -> Any:
            return [w for w in top_of(pair)["writers"] if w["wait"] == "lock on public.t"]

        wait_for(waiting, "a writer that waits for the lock")


def test_stream(pair: Pair) -> None:
    """A large transaction that is still in progress on the publisher."""
    pair.publisher.query("ALTER SYSTEM SET logical_decoding_work_mem = '64kB'")
    pair.publisher.query("SELECT pg_reload_conf()")
    try:
        pair.subscribe(options=", streaming = on")
        with pair.publisher.connect(autocommit=False) as connection:
            connection.execute(
                "INSERT INTO t SELECT g, repeat('x', 100) FROM generate_series(1, 5000) g"
            )
            (stream,) = wait_for(lambda: top_of(pair)["streams"], "a stream")
            assert stream["subscription"] == "shop"
            assert stream["spool_bytes"] > 0
    finally:
        pair.publisher.query("ALTER SYSTEM RESET logical_decoding_work_mem")
        pair.publisher.query("SELECT pg_reload_conf()")


def test_conflict(pair: Pair, weft: Weft) -> None:
    pair.subscribe(options=", origin = none, detect_conflicts = on")
    pair.subscriber.query("INSERT INTO t VALUES (1, 'mine')")
    pair.publisher.query("INSERT INTO t VALUES (1, 'theirs')")
    pair.wait_for_apply()
    document = top_of(pair)
    (conflict,) = document["conflicts"]
    assert (conflict["type"], conflict["conflicts"]) == ("insert_exists", 1)
    (latest,) = document["latest_conflicts"]
    assert (latest["table"], latest["key"]) == ("public.t", '{"id": 1}')
    shown = weft("top", server=pair.subscriber)
    assert "insert_exists" in shown.stdout


def test_piped(pair: Pair, weft: Weft) -> None:
    """Without a terminal, all pages are written once."""
    pair.subscribe()
    done = weft("top", server=pair.subscriber)
    assert (done.returncode, done.stderr) == (ExitCode.FINE, "")
    assert ESCAPE not in done.stdout
    for heading in ("subscriptions", "writers", "tables", "streams", "conflicts", "copies"):
        assert f"\n{heading}\n" in f"\n{done.stdout}"


@pytest.mark.parametrize("width", [80, 160])
def test_keys(pair: Pair, width: int) -> None:
    pair.subscribe()
    arguments = ["top", "--watch", "30", "-d", pair.subscriber.conninfo]
    with Terminal(*arguments, width=width) as terminal:
        shown = terminal.wait_for("q: quit")
        assert "1 subscriptions" in shown
        assert "streaming" in shown
        assert max(map(len, shown.splitlines())) <= width
        for key, text in (
            ("2", "waits for"),
            ("3", "Nothing has been applied"),
            (f"{ESCAPE}[C", "No transaction is being streamed."),
            ("\t", "No conflict has been found"),
            (f"{ESCAPE}[C", "No table is being copied."),
            (f"{ESCAPE}[C", "streaming"),
            ("+", "every 60 s"),
            ("-", "every 30 s"),
            (" ", "PAUSED"),
            # several at once
            (f"2{ESCAPE}[D3", "Nothing has been applied"),
        ):
            terminal.type(key)
            terminal.wait_for(text)
        terminal.type("q")
        assert terminal.finish() == 0
        assert terminal.restored
        # back from the alternate screen, with a cursor
        assert f"{ESCAPE}[?1049l" in terminal.raw
        assert f"{ESCAPE}[?25h" in terminal.raw


def test_sorting(pair: Pair) -> None:
    """Writers by number, upwards and downwards."""
    pair.subscribe()
    arguments = ["top", "--watch", "30", "-d", pair.subscriber.conninfo]
    with Terminal(*arguments, width=160) as terminal:
        terminal.wait_for("q: quit")
        terminal.type("2")
        terminal.wait_for("q: quit")

        def numbers(shown: str) -> list[int]:
            return [int(line.split()[1]) for line in shown.splitlines() if line[:5] == "shop "]

        terminal.type("s")
        assert numbers(terminal.wait_for("q: quit")) == [3, 2, 1, 0]
        terminal.type("r")
        assert numbers(terminal.wait_for("q: quit")) == [0, 1, 2, 3]


@pytest.mark.parametrize("how", ["interrupt", "terminate"])
def test_ended_by_a_signal(pair: Pair, how: str) -> None:
    """The terminal is left as it was."""
    number = signal.SIGINT if how == "interrupt" else signal.SIGTERM
    with Terminal("top", "-d", pair.subscriber.conninfo) as terminal:
        terminal.wait_for("q: quit")
        terminal.process.send_signal(number)
        assert terminal.finish() == 128 + number
        assert terminal.restored
        assert f"{ESCAPE}[?25h" in terminal.raw


def test_server_restarted(pair: Pair) -> None:
    pair.subscribe()
    with Terminal("top", "--watch", "0.5", "-d", pair.subscriber.conninfo) as terminal:
        terminal.wait_for("streaming")
        pair.subscriber.run("pg_ctl", "stop", "-D", str(pair.subscriber.data), "-m", "fast")
        terminal.wait_for("UNREACHABLE")
        pair.subscriber.start()
        terminal.wait_for("streaming")
        terminal.type("q")
        assert terminal.finish() == 0


def test_refused(pair: Pair, weft: Weft) -> None:
    pair.subscriber.query("DROP EXTENSION weft")
    done = weft("top", server=pair.subscriber)
    assert done.returncode == ExitCode.REFUSED
    assert weft("top", "-h", "/nowhere").returncode == ExitCode.UNREACHABLE
