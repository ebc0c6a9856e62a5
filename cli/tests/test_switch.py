"""weft switch-over, switch-back and upgrade."""

import json
from collections.abc import Iterator

import psycopg
import pytest

from conftest import Pair, Weft
from weft_cli.exit_code import ExitCode

SCHEMA = (
    "CREATE TABLE customer (id serial PRIMARY KEY, name text)",
    "CREATE TABLE event (what text)",
    "ALTER TABLE event REPLICA IDENTITY FULL",
)


def fill(pair: Pair) -> None:
    pair.publisher.query(
        "INSERT INTO customer (name) SELECT 'customer ' || g FROM generate_series(1, 100) g"
    )
    pair.publisher.query("INSERT INTO event VALUES ('first')")


@pytest.fixture
def shop(pair: Pair) -> Iterator[Pair]:
    for server in (pair.publisher, pair.subscriber):
        for statement in SCHEMA:
            server.query(statement)
    fill(pair)
    pair.publisher.query("CREATE PUBLICATION p FOR ALL TABLES")
    pair.subscriber.query(
        f"CREATE SUBSCRIPTION s CONNECTION '{pair.publisher.conninfo}' PUBLICATION p"
        f" WITH (slot_name = {pair.publisher.database})"
    )
    pair.subscriber.query("SELECT weft.wait_for_subscription('s', '60 s')")
    yield pair
    drop_followers(pair)


def drop_followers(pair: Pair) -> None:
    """What follows the new server, on the old one."""
    for (name,) in pair.publisher.query(
        "SELECT subname FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid"
        " WHERE d.datname = current_database()"
    ):
        pair.publisher.query(f'DROP SUBSCRIPTION "{name}"')


def accepts_writes(server: object) -> bool:
    try:
        server.query("INSERT INTO event VALUES ('written')")  # type: ignore[attr-defined]
    except psycopg.Error as error:
        assert error.sqlstate == "25006"
        return False
    return True


def test_over_and_back(shop: Pair, weft: Weft) -> None:
    reverse = f"{shop.subscriber.conninfo} password=secret"
    done = weft("switch-over", "s", "--yes", server=shop.subscriber)
    assert done.returncode == ExitCode.USAGE
    assert "--no-way-back" in done.stderr

    done = weft(
        "switch-over", "s", "--reverse", reverse, "--dry-run", "-o", "json",
        server=shop.subscriber,
    )  # fmt: skip
    assert done.returncode == ExitCode.FINE, done.stderr
    severities = {row["severity"] for row in json.loads(done.stdout)["checks"]}
    assert "ok" in severities
    assert "error" not in severities
    assert accepts_writes(shop.publisher)

    done = weft("switch-over", "s", "--reverse", reverse, "--yes", server=shop.subscriber)
    assert done.returncode == ExitCode.FINE, done.stdout + done.stderr
    assert "✓ open the next server for writes" in done.stdout
    assert "This server accepts writes. The old server follows it." in done.stdout
    assert "secret" not in done.stdout + done.stderr
    assert accepts_writes(shop.subscriber)
    assert not accepts_writes(shop.publisher)

    done = weft("switch-back", "s", "--yes", "-o", "json", server=shop.subscriber)
    assert done.returncode == ExitCode.FINE, done.stderr
    result = json.loads(done.stdout)
    assert 0 < result["pause"] < 60
    assert {row["direction"] for row in result["steps"]} == {"back"}
    assert accepts_writes(shop.publisher)
    assert not accepts_writes(shop.subscriber)
    done = weft("switch-back", "s", "--yes", server=shop.subscriber)
    assert done.returncode == ExitCode.REFUSED


def test_connection_string_is_not_logged(shop: Pair, weft: Weft) -> None:
    """Not even if everything is logged, and the switch-over fails."""
    shop.subscriber.query(f"ALTER DATABASE {shop.subscriber.database} SET log_statement = 'all'")
    shop.subscriber.query(
        f"ALTER DATABASE {shop.subscriber.database} SET log_parameter_max_length_on_error = -1"
    )
    reverse = "host=/nowhere dbname=none password=verysecret"
    done = weft("switch-over", "s", "--reverse", reverse, "--yes", server=shop.subscriber)
    assert done.returncode == ExitCode.REFUSED, done.stdout
    assert "continues to do so" in done.stderr
    log = shop.subscriber.log.read_text(errors="replace")
    assert "COPY pg_temp.weft_wishes" in log
    assert "verysecret" not in log + done.stdout + done.stderr
    assert accepts_writes(shop.publisher)
    assert not accepts_writes(shop.subscriber)

    done = weft("switch-over", "s", "--cancel", "--yes", server=shop.subscriber)
    assert done.returncode == ExitCode.FINE, done.stderr
    assert "was undone" in done.stdout
    assert accepts_writes(shop.subscriber)


def test_refuses_if_the_plan_has_errors(shop: Pair, weft: Weft) -> None:
    shop.subscriber.query("ALTER SUBSCRIPTION s DISABLE")
    arguments = ("switch-over", "s", "--no-way-back")
    done = weft(*arguments, "--dry-run", server=shop.subscriber)
    assert done.returncode == ExitCode.FINDINGS, done.stderr
    assert "error: " in done.stdout
    done = weft(*arguments, "--yes", server=shop.subscriber)
    assert done.returncode == ExitCode.REFUSED
    assert accepts_writes(shop.publisher)
    shop.subscriber.query("ALTER SUBSCRIPTION s ENABLE")


@pytest.fixture
def old_shop(pair: Pair) -> Iterator[Pair]:
    """The new server has an empty database, without the extension."""
    pair.subscriber.query("DROP EXTENSION weft")
    for statement in SCHEMA:
        pair.publisher.query(statement)
    fill(pair)
    yield pair
    drop_followers(pair)


def names(pair: Pair) -> tuple[str, ...]:
    """So that tests that share servers have slots of their own."""
    return ("--subscription", f"up_{pair.publisher.database}")


def test_upgrade(old_shop: Pair, weft: Weft) -> None:
    pair = old_shop
    secret = "silent-night"
    source = f"{pair.publisher.conninfo} password={secret}"
    pair.subscriber.query(f"ALTER DATABASE {pair.subscriber.database} SET log_statement = 'all'")
    arguments = ("upgrade", "--from", source, *names(pair))
    done = weft(*arguments, "--dry-run", "-o", "json", server=pair.subscriber)
    assert done.returncode == ExitCode.FINE, done.stderr
    plan = json.loads(done.stdout)
    assert [step["step"] for step in plan["steps"]] == [
        "extension", "publication", "schema", "subscription", "copy", "analyze", "compare",
    ]  # fmt: skip
    assert not any(step["done"] for step in plan["steps"])
    assert weft(*arguments, server=pair.subscriber).returncode == ExitCode.USAGE

    done = weft(*arguments, "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.FINE, done.stdout + done.stderr
    assert "✓ compare all rows" in done.stdout
    assert pair.subscriber.value("SELECT count(*) FROM customer") == 100
    assert accepts_writes(pair.publisher)

    done = weft(*arguments, "--dry-run", "-o", "json", server=pair.subscriber)
    assert all(step["done"] for step in json.loads(done.stdout)["steps"])
    # The subscription knows where the old server is.
    switch = ("upgrade", *names(pair), "--switch-over", "--reverse", pair.subscriber.conninfo)
    done = weft(*switch, "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.FINE, done.stdout + done.stderr
    assert "Writes were paused for" in done.stdout
    assert accepts_writes(pair.subscriber)
    assert not accepts_writes(pair.publisher)
    done = weft(*arguments, "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.FINE, done.stdout + done.stderr
    assert "accepts writes already" in done.stdout
    assert "CREATE EXTENSION weft" in pair.subscriber.log.read_text()
    assert secret not in pair.subscriber.log.read_text()

    # When everything of the upgrade is removed, the old server is not copied into the new one.
    pair.subscriber.query(f"DROP SUBSCRIPTION {names(pair)[1]}")
    rows = pair.subscriber.value("SELECT count(*) FROM event")
    done = weft(*arguments, "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.REFUSED, done.stdout + done.stderr
    assert "have rows on the new server already" in done.stderr
    assert pair.subscriber.value("SELECT count(*) FROM event") == rows
    assert pair.subscriber.value("SELECT count(*) FROM pg_subscription") == 0


def test_upgrade_continues(old_shop: Pair, weft: Weft) -> None:
    """Whatever exists already is used."""
    pair = old_shop
    pair.publisher.query("CREATE PUBLICATION upgrade FOR ALL TABLES")
    pair.subscriber.query(SCHEMA[0])
    arguments = ("upgrade", "--from", pair.publisher.conninfo, *names(pair))
    done = weft(*arguments, "--dry-run", "-o", "json", server=pair.subscriber)
    done_steps = [step["step"] for step in json.loads(done.stdout)["steps"] if step["done"]]
    assert done_steps == ["publication"]
    done = weft(*arguments, "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.FINE, done.stdout + done.stderr
    pair.subscriber.query("DELETE FROM customer WHERE id = 1")
    pair.subscriber.query("DELETE FROM weft.comparison")
    done = weft(*arguments, "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.REFUSED, done.stdout
    assert "has found differences" in done.stderr
    number = pair.subscriber.value("SELECT max(comparison) FROM weft.comparison")
    assert weft("repair", str(number), "--yes", server=pair.subscriber).returncode == ExitCode.FINE
    done = weft(*arguments, "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.FINE, done.stdout + done.stderr


def test_upgrade_refuses(old_shop: Pair, weft: Weft) -> None:
    """A table without a key would reject updates once it is published."""
    pair = old_shop
    pair.publisher.query("ALTER TABLE event REPLICA IDENTITY DEFAULT")
    done = weft("upgrade", "--from", pair.publisher.conninfo, "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.REFUSED
    assert "ALTER TABLE public.event REPLICA IDENTITY FULL" in done.stdout
    assert pair.publisher.value("SELECT count(*) FROM pg_publication") == 0
    done = weft("upgrade", "--yes", server=pair.subscriber)
    assert done.returncode == ExitCode.USAGE
    assert "--from" in done.stderr
