"""weft compare, repair and resync."""

import json
import signal
import subprocess
import sys
from typing import Any

import pytest

from conftest import Pair, Weft, clean_environment
from terminal import in_terminal
from weft_cli.exit_code import ExitCode


@pytest.fixture
def shop(pair: Pair) -> Pair:
    """Three rows of the subscriber differ; the one table has a key, the other one none."""
    for server in (pair.publisher, pair.subscriber):
        server.query("CREATE TABLE customer (id int PRIMARY KEY, name text, credit numeric)")
        server.query("CREATE TABLE event (what text)")
    pair.publisher.query(
        "INSERT INTO customer SELECT g, 'customer ' || g, g FROM generate_series(1, 1000) g"
    )
    pair.publisher.query("INSERT INTO event SELECT 'event ' || g FROM generate_series(1, 500) g")
    pair.publisher.query("CREATE PUBLICATION p FOR ALL TABLES")
    pair.subscriber.query(
        f"CREATE SUBSCRIPTION s CONNECTION '{pair.publisher.conninfo}' PUBLICATION p"
        f" WITH (slot_name = {pair.publisher.database})"
    )
    pair.subscriber.query("SELECT weft.wait_for_subscription('s', '60 s')")
    pair.subscriber.query("UPDATE customer SET credit = 0 WHERE id = 7")
    pair.subscriber.query("DELETE FROM customer WHERE id = 8")
    pair.subscriber.query("INSERT INTO customer VALUES (2000, 'nobody [red]', NULL)")
    return pair


def rows(pair: Pair, table: str) -> tuple[Any, Any]:
    query = f"SELECT count(*), sum(hashtextextended(t::text, 0)) FROM {table} t"
    return pair.publisher.query(query), pair.subscriber.query(query)


def test_finds_and_repairs(shop: Pair, weft: Weft) -> None:
    done = weft("compare", "s", server=shop.subscriber)
    assert done.returncode == ExitCode.FINDINGS, done.stderr
    assert done.stderr == ""
    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["public.customer", "1,000", "1,000", "3", "differs"] in lines
    assert ["public.event", "500", "500", "0", "equal"] in lines
    assert "credit: 7 there, 0 here" in done.stdout
    assert "To repair: weft repair 1" in done.stdout

    done = weft("repair", "1", "--dry-run", server=shop.subscriber)
    assert done.returncode == ExitCode.FINE, done.stderr
    assert "DELETE FROM ONLY public.customer WHERE id = '2000';" in done.stdout
    done = weft("repair", "1", server=shop.subscriber)
    assert done.returncode == ExitCode.USAGE
    assert "--yes" in done.stderr
    publisher, subscriber = rows(shop, "customer")
    assert publisher != subscriber

    done = weft("repair", "1", "--yes", "-o", "json", server=shop.subscriber)
    assert done.returncode == ExitCode.FINE, done.stderr
    assert json.loads(done.stdout)["results"] == {"repaired": 3}
    publisher, subscriber = rows(shop, "customer")
    assert publisher == subscriber
    done = weft("repair", "1", "--yes", server=shop.subscriber)
    assert done.returncode == ExitCode.FINE
    assert "3 repaired" in done.stdout

    done = weft("compare", "s", "-o", "json", server=shop.subscriber)
    assert done.returncode == ExitCode.FINE
    result = json.loads(done.stdout)
    assert (result["schema"], result["equal"], result["comparison"]) == (1, True, 2)


def test_rows_that_cannot_be_repaired(shop: Pair, weft: Weft) -> None:
    assert weft("compare", "s", server=shop.subscriber).returncode == ExitCode.FINDINGS
    with shop.subscriber.connect(autocommit=False) as session:
        session.execute("SELECT FROM customer WHERE id = 7 FOR UPDATE")
        done = weft("repair", "1", "--yes", "--lock-timeout", "50 ms", server=shop.subscriber)
    assert done.returncode == ExitCode.FINDINGS, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert "2 repaired" in done.stdout
    assert "public.customer id=7:" in done.stdout


def test_choice_of_tables(shop: Pair, weft: Weft) -> None:
    for name in ("event", "public.event"):
        done = weft("compare", "s", "--table", name, server=shop.subscriber)
        assert done.returncode == ExitCode.FINE, done.stderr
        assert "customer" not in done.stdout
    done = weft("compare", "s", "--table", "nothing", server=shop.subscriber)
    assert done.returncode == ExitCode.REFUSED
    assert '"nothing" is not a table of subscription "s"' in done.stderr
    done = weft("compare", "s", "--dry-run", "-o", "json", server=shop.subscriber)
    assert [row["table_name"] for row in json.loads(done.stdout)["tables"]] == [
        "public.customer",
        "public.event",
    ]


def test_earlier_comparisons(shop: Pair, weft: Weft) -> None:
    assert "no comparisons" in weft("compare", "--list", server=shop.subscriber).stdout
    weft("compare", "s", server=shop.subscriber)
    listed = json.loads(weft("compare", "--list", "-o", "json", server=shop.subscriber).stdout)
    assert [row["differences"] for row in listed["comparisons"]] == [3]
    done = weft("compare", "--show", "1", "--rows", "1", server=shop.subscriber)
    assert done.returncode == ExitCode.FINDINGS
    assert "and 2 more" in done.stdout
    done = weft("compare", "--show", "5", server=shop.subscriber)
    assert done.returncode == ExitCode.REFUSED
    assert "no comparison 5" in done.stderr
    done = weft("compare", server=shop.subscriber)
    assert done.returncode == ExitCode.USAGE


def test_interrupted(shop: Pair, weft: Weft) -> None:
    """Ctrl-C ends it at once, and it can be continued."""
    process = subprocess.Popen(
        [sys.executable, "-m", "weft_cli", "compare", "s", "--max-rows-per-second", "10",
         "--jobs", "1", "-d", shop.subscriber.conninfo],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment(),
    )  # fmt: skip
    shop.subscriber.wait_until("SELECT count(*) = 1 FROM weft.stat_comparison WHERE pid > 0")
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130, errors
    assert "weft compare --resume 1 s" in errors
    assert "Traceback" not in errors
    done = weft("compare", "s", "--resume", "1", server=shop.subscriber)
    assert done.returncode == ExitCode.FINDINGS, done.stderr
    assert "To repair: weft repair 1" in done.stdout


@pytest.mark.parametrize("columns", [80, 160])
def test_in_a_terminal(shop: Pair, columns: int) -> None:
    target = ["-d", shop.subscriber.conninfo]
    code, text = in_terminal(["compare", "s", *target], columns)
    assert code == ExitCode.FINDINGS, text
    assert "Traceback" not in text
    assert "nobody [red]" in text or "id=2000" in text
    code, text = in_terminal(["repair", "1", *target], columns, answer="n\n")
    assert code == ExitCode.REFUSED, text
    assert "nothing has been changed" in text
    code, text = in_terminal(["repair", "1", *target], columns, answer="y\n", NO_COLOR="1")
    assert code == ExitCode.FINE, text
    assert "3 repaired" in text
    assert "\x1b[1;31m" not in text


def test_resync(shop: Pair, weft: Weft) -> None:
    shop.subscriber.query("DELETE FROM event")
    done = weft("resync", "s", "event", "--dry-run", server=shop.subscriber)
    assert done.returncode == ExitCode.FINE, done.stderr
    assert "public.event" in done.stdout
    assert shop.subscriber.value("SELECT count(*) FROM event") == 0
    assert weft("resync", "s", "event", server=shop.subscriber).returncode == ExitCode.USAGE

    done = weft("resync", "s", "event", "customer", "--yes", server=shop.subscriber)
    assert done.returncode == ExitCode.FINE, done.stderr
    assert "Copied again, and synchronized: public.event, public.customer" in done.stdout
    for table in ("event", "customer"):
        publisher, subscriber = rows(shop, table)
        assert publisher == subscriber


def test_resync_cancelled(shop: Pair, weft: Weft) -> None:
    """A session that has changed the table delays its copy."""
    shop.subscriber.query("DELETE FROM event")
    with shop.subscriber.connect(autocommit=False) as session:
        session.execute("INSERT INTO event VALUES ('only here')")
        done = weft(
            "resync", "s", "event", "--yes", "--no-wait", "-o", "json", server=shop.subscriber
        )
        assert done.returncode == ExitCode.FINE, done.stderr
        assert json.loads(done.stdout)["left"] == ["public.event"]
        session.rollback()
        # From here on it may have ended before it is cancelled, which is refused.
        done = weft("resync", "s", "event", "--cancel", "--yes", server=shop.subscriber)
    assert done.returncode in (ExitCode.FINE, ExitCode.REFUSED), done.stderr
    expected = 0 if done.returncode == ExitCode.FINE else 500
    shop.subscriber.query("SELECT weft.wait_for_subscription('s', '60 s')")
    assert shop.subscriber.value("SELECT count(*) FROM event") == expected
