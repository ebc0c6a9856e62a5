"""Who holds a subscription up: arranged on real servers, each with another culprit."""

import threading
from pathlib import Path
from typing import Any

import pytest

from conftest import Pair, next_number, wait_for_status
from slow_link import SlowLink
from weft_cli.culprit import Kind


def culprit(document: dict[str, Any]) -> dict[str, Any]:
    (subscription,) = (s for s in document["subscriptions"] if s["name"] == "shop")
    return subscription["culprit"] or {"kind": None}


def wait_for_culprit(pair: Pair, kind: Kind, *arguments: str) -> dict[str, Any]:
    return wait_for_status(pair.subscriber, lambda d: culprit(d)["kind"] == kind, *arguments)


def test_lock(pair: Pair) -> None:
    """The session that holds it is named, and the SQL that is given ends it."""
    pair.subscribe()
    holder = pair.subscriber.connect(autocommit=False, application_name="nightly")
    holder.execute("LOCK TABLE t")
    pid = holder.info.backend_pid
    pair.publisher.query("INSERT INTO t VALUES (1, 'x')")
    document = wait_for_culprit(pair, "lock")
    found = culprit(document)
    assert f"held by process {pid} (postgres, nightly, " in found["text"]
    assert "on public.t," in found["text"]
    assert found["seconds"] >= 1
    assert document["subscriptions"][0]["state"] == "blocked"
    assert document["verdict"] == "warning"
    (finding,) = (f for f in document["findings"] if f["id"] == "apply-blocked")
    assert finding["fix_sql"] == [f"SELECT pg_terminate_backend({pid});"]
    pair.subscriber.query(finding["fix_sql"][0])
    document = wait_for_status(
        pair.subscriber, lambda d: d["subscriptions"][0]["state"] == "streaming"
    )
    assert culprit(document)["kind"] is None
    holder.close()


def test_lock_behind_a_lock(pair: Pair) -> None:
    """The one is named that blocks the one that blocks apply."""
    pair.subscribe()
    pair.publisher.query("INSERT INTO t VALUES (1, 'x')")
    pair.wait_for_apply()
    first = pair.subscriber.connect(autocommit=False)
    first.execute("SELECT FROM t")
    second = pair.subscriber.connect()
    second.pgconn.send_query(b"BEGIN; LOCK TABLE t")
    pair.subscriber.wait_until("SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted)")
    pair.publisher.query("INSERT INTO t VALUES (2, 'x')")
    found = culprit(wait_for_culprit(pair, "lock"))
    assert f"held by process {first.info.backend_pid} " in found["text"]
    first.close()
    second.close()


def test_prepared_transaction(pair: Pair) -> None:
    pair.subscribe()
    with pair.subscriber.connect() as connection:
        connection.execute("BEGIN; LOCK TABLE t; PREPARE TRANSACTION 'forgotten'")
    pair.publisher.query("INSERT INTO t VALUES (1, 'x')")
    found = culprit(wait_for_culprit(pair, "lock"))
    assert "a prepared transaction" in found["text"]
    assert "pg_prepared_xacts" in found["remedy"]
    pair.subscriber.query("ROLLBACK PREPARED 'forgotten'")


@pytest.fixture
def slow_link(pair: Pair, directory: Path) -> Any:
    link = SlowLink(directory / f"slow{next_number()}", pair.publisher, 1_000_000)
    link.open()
    yield link
    link.bytes_per_second = 1e12
    pair.subscriber.query(f"ALTER SUBSCRIPTION shop CONNECTION '{pair.publisher.conninfo}'")
    link.close()


def test_network(pair: Pair, slow_link: SlowLink) -> None:
    pair.subscribe(conninfo=slow_link.conninfo)
    for number in range(20):
        pair.publisher.query(
            "INSERT INTO t SELECT g, repeat(md5(g::text), 30)"
            f" FROM generate_series({number * 1000 + 1}, {number * 1000 + 1000}) g"
        )
    direct = ("--publisher", pair.publisher.conninfo)
    document = wait_for_culprit(pair, "network", *direct)
    # It is no accident of one moment.
    document = wait_for_status(pair.subscriber, lambda _: True, *direct)
    assert culprit(document)["kind"] == "network"
    (subscription,) = document["subscriptions"]
    assert subscription["state"] == "catching up"
    assert subscription["behind_bytes"] > 1_000_000
    slow_link.bytes_per_second = 1e9
    wait_for_status(
        pair.subscriber, lambda d: d["subscriptions"][0]["state"] == "streaming", *direct
    )


def test_publisher(pair: Pair) -> None:
    """The walsender decodes large transactions of a table that is not published."""
    options = "options='-c logical_decoding_work_mem=64kB'".replace("'", "''")
    pair.subscribe(conninfo=f"{pair.publisher.conninfo} {options}")
    pair.publisher.query("CREATE TABLE unpublished (id int, v text)")
    found = threading.Event()

    def write() -> None:
        """Faster than a walsender decodes that must write everything to disk, and read it."""
        while not found.is_set():
            pair.publisher.query(
                "INSERT INTO unpublished"
                " SELECT g, repeat('x', 20) FROM generate_series(1, 100000) g"
            )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        document = wait_for_culprit(pair, "publisher")
    finally:
        found.set()
        writer.join()
    assert "left to decode" in culprit(document)["text"]
    assert document["subscriptions"][0]["state"] == "catching up"
    wait_for_status(pair.subscriber, lambda d: d["subscriptions"][0]["state"] == "streaming")


def test_apply(pair: Pair) -> None:
    """A trigger makes apply slow; everything has been received."""
    pair.subscribe()
    pair.subscriber.query(
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql"
        " AS 'BEGIN PERFORM pg_sleep(0.01); RETURN NULL; END'"
    )
    pair.subscriber.query(
        "CREATE TRIGGER slow AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION slow()"
    )
    pair.subscriber.query("ALTER TABLE t ENABLE ALWAYS TRIGGER slow")
    for number in range(40):
        pair.publisher.query(
            "INSERT INTO t SELECT g, repeat(md5(g::text), 30)"
            f" FROM generate_series({number * 100 + 1}, {number * 100 + 100}) g"
        )
    found = culprit(wait_for_culprit(pair, "apply"))
    assert "received and not applied" in found["text"]
    pair.subscriber.query("ALTER TABLE t DISABLE TRIGGER slow")


def test_publisher_not_asked(pair: Pair, slow_link: SlowLink) -> None:
    """Then the two cannot be told apart, if anything is known at all."""
    pair.subscribe(conninfo=slow_link.conninfo)
    known = pair.subscriber.query(
        "SELECT 1 FROM pg_attribute WHERE attrelid = 'weft.stat_subscription'::regclass"
        " AND attname = 'publisher_lag_bytes'"
    )
    if not known:
        pytest.skip("this version does not tell how far the publisher is")
    pair.publisher.query(
        "INSERT INTO t SELECT g, repeat(md5(g::text), 30) FROM generate_series(1, 20000) g"
    )
    found = culprit(wait_for_culprit(pair, "publisher or network", "--no-publisher"))
    assert "--publisher" in found["remedy"]
