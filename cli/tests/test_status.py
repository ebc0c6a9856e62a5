"""weft status: states, figures, findings, and their forms."""

import json
import re
import signal
import subprocess
import threading
from typing import Any

import pytest

from conftest import (
    Pair,
    Weft,
    next_number,
    status_of,
    wait_for_status,
    watching,
)
from live_terminal import ESCAPE, Terminal
from servers import wait_for
from weft_cli.exit_code import ExitCode


def only(document: dict[str, Any]) -> dict[str, Any]:
    """The one subscription of a status."""
    (subscription,) = (s for s in document["subscriptions"] if s["name"] == "shop")
    found: dict[str, Any] = subscription
    return found


def ids(document: dict[str, Any]) -> set[str]:
    return {f["id"] for f in document["findings"] if f["severity"] != "info"}


KEYS: dict[str, Any] = {
    "name": str, "database": str, "state": str, "enabled": bool, "behind_bytes": int,
    "behind_is_all": bool, "behind_seconds": float, "apply_lag_bytes": int,
    "transactions_per_second": float, "bytes_per_second": (float, type(None)),
    "publisher_bytes_per_second": (float, type(None)), "seconds_left": None,
    "never_catches_up": bool, "writers": int, "busy_writers": int, "native": bool,
    "native_reason": None, "output_plugin": str, "received_lsn": str, "applied_lsn": str,
    "transactions": int, "native_transactions": int, "changes": int, "tables_not_ready": int,
    "error_count": int, "last_error": None, "last_error_time": None, "culprit": None,
    "publisher": dict,
}  # fmt: skip


def test_json(pair: Pair) -> None:
    """Programs rely on these names and types; whoever changes them raises the number."""
    pair.subscribe()
    pair.publisher.query("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 10) g")
    pair.wait_for_apply()
    document = wait_for_status(pair.subscriber, lambda d: only(d)["behind_bytes"] == 0)
    assert (document["schema"], document["kind"], document["verdict"]) == (1, "status", "ok")
    assert set(document) == {
        "schema", "kind", "time", "verdict", "server", "findings", "subscriptions", "copies",
        "node_group",
    }  # fmt: skip
    assert set(document["server"]) == {"name", "version", "weft_library", "weft_extension"}
    subscription = only(document)
    assert set(subscription) == set(KEYS)
    for key, kind in KEYS.items():
        value = subscription[key]
        assert value is None if kind is None else isinstance(value, kind), (key, value)
    assert subscription["state"] == "streaming"
    assert subscription["transactions"] >= 1
    assert subscription["publisher"]["slot_active"] is True
    assert subscription["publisher"]["wal_status"] == "reserved"


def test_disabled(pair: Pair) -> None:
    pair.subscribe()
    pair.subscriber.query("ALTER SUBSCRIPTION shop DISABLE")
    pair.subscriber.wait_until("SELECT NOT EXISTS (SELECT FROM pg_stat_subscription"
                               " WHERE subname = 'shop' AND pid IS NOT NULL)")  # fmt: skip
    document = status_of(pair.subscriber)
    assert (document["verdict"], only(document)["state"]) == ("warning", "disabled")
    (finding,) = (f for f in document["findings"] if f["severity"] == "warning")
    assert finding["fix_sql"] == ['ALTER SUBSCRIPTION "shop" ENABLE;']
    pair.subscriber.query(finding["fix_sql"][0])
    wait_for_status(pair.subscriber, lambda d: d["verdict"] == "ok")


def test_error(pair: Pair) -> None:
    """A row that violates a constraint: the worker fails again and again, or is disabled."""
    pair.subscribe()
    pair.subscriber.query("ALTER TABLE t ADD CHECK (v <> 'bad')")
    pair.publisher.query("INSERT INTO t VALUES (1, 'bad')")
    document = wait_for_status(
        pair.subscriber, lambda d: only(d)["state"] == "failing" and d["findings"]
    )
    assert document["verdict"] == "error"
    assert "apply-failing" in ids(document)
    assert 'check constraint "t_v_check"' in only(document)["last_error"]
    pair.subscriber.query("ALTER SUBSCRIPTION shop SET (disable_on_error)")
    document = wait_for_status(
        pair.subscriber, lambda d: only(d)["state"] == "disabled", "--no-publisher"
    )
    (finding,) = (f for f in document["findings"] if f["id"] == "subscription-disabled")
    assert finding["severity"] == "error"
    pair.subscriber.query("ALTER TABLE t DROP CONSTRAINT t_v_check")
    pair.subscriber.query("ALTER SUBSCRIPTION shop ENABLE")
    wait_for_status(pair.subscriber, lambda d: only(d)["state"] == "streaming")


def disabled_finding(pair: Pair, severity: str) -> str:
    """What is said of the disabled subscription."""
    document = status_of(pair.subscriber, "--no-publisher")
    (finding,) = (f for f in document["findings"] if f["id"] == "subscription-disabled")
    assert finding["severity"] == severity, finding
    problem: str = finding["problem"]
    return problem


def test_disabled_by_the_owner_after_an_error(pair: Pair) -> None:
    """An error that was overcome long ago has not disabled it, nor has one that only repeats."""
    server = pair.subscriber
    pair.subscribe(options=", disable_on_error")
    server.query("ALTER TABLE t ADD CHECK (v <> 'bad')")
    pair.publisher.query("INSERT INTO t VALUES (1, 'bad')")
    server.wait_until("SELECT NOT subenabled FROM pg_subscription WHERE subname = 'shop'")
    assert "t_v_check" in disabled_finding(pair, "error")
    server.query("ALTER SUBSCRIPTION shop SET (disable_on_error = false)")
    assert "t_v_check" in disabled_finding(pair, "warning")
    server.query("ALTER SUBSCRIPTION shop SET (disable_on_error)")

    server.query("ALTER TABLE t DROP CONSTRAINT t_v_check")
    server.query("ALTER SUBSCRIPTION shop ENABLE")
    server.wait_until(
        "SELECT overcome FROM weft.stat_get_last_error() e JOIN pg_subscription s"
        " ON s.oid = e.subid WHERE s.subname = 'shop'"
    )
    server.query("ALTER SUBSCRIPTION shop DISABLE")
    assert disabled_finding(pair, "warning") == "disabled"

    # Older versions do not tell, and have no view that needs it.
    server.query("ALTER FUNCTION weft.stat_get_last_error RENAME TO not_yet")
    server.query("ALTER FUNCTION weft.health RENAME TO not_yet_either")
    disabled_finding(pair, "error")
    server.query("ALTER SUBSCRIPTION shop SET (disable_on_error = false)")
    disabled_finding(pair, "warning")


FORGED = "shop\nFORGED  up to date\x7f\x9b2J\x1b[2J"


@pytest.mark.parametrize(
    "command",
    [
        ("status",),
        ("status", "--nagios"),
        ("top",),
        ("doctor",),
        ("adopt", f"{FORGED}x"),
        ("adopt", FORGED, "--plugin", "pgoutput", "--yes"),
        ("compare", FORGED),
        ("status", "no such\nFORGED\x9b"),
        ("status", "-h", "/no\nFORGED\x9b"),
    ],
    ids=lambda command: " ".join(command).translate({ord(c): "_" for c in "\n\x7f\x9b\x1b"}),
)
def test_names_with_control_characters(pair: Pair, weft: Weft, command: tuple[str, ...]) -> None:
    """A name cannot pretend to be a line of the output, and does not control the terminal."""
    pair.subscribe()
    pair.subscriber.query(f'ALTER SUBSCRIPTION shop RENAME TO "{FORGED}"')
    done = weft(*command, server=None if "-h" in command else pair.subscriber)
    output = done.stdout + done.stderr
    assert output.replace("\n", "").isprintable(), ascii(output)
    assert not [line for line in output.splitlines() if line.startswith("FORGED")]
    assert "FORGED" in output
    if "-h" not in command:
        done = weft(*command, "-o", "json", server=pair.subscriber)
        assert done.stdout.isascii()
        assert done.stdout.replace("\n", "").isprintable()


def test_native(pair: Pair) -> None:
    """It is the user's choice, so it is noted, but nothing is wrong."""
    pair.subscribe(options=", num_writers = 0")
    document = wait_for_status(pair.subscriber, lambda d: only(d)["native_reason"])
    assert document["verdict"] == "ok"
    assert only(document)["native"] is True
    assert "applied-natively" in {f["id"] for f in document["findings"]}


def test_slot_missing(pair: Pair) -> None:
    pair.subscribe()
    slot = pair.subscriber.value("SELECT subslotname FROM pg_subscription WHERE subname = 'shop'")
    pair.subscriber.query("ALTER SUBSCRIPTION shop DISABLE")
    pair.publisher.wait_until(
        f"SELECT NOT active FROM pg_replication_slots WHERE slot_name = '{slot}'"
    )
    pair.publisher.query(f"SELECT pg_drop_replication_slot('{slot}')")
    document = status_of(pair.subscriber)
    assert document["verdict"] == "error"
    assert "slot-missing" in ids(document)
    pair.subscriber.query("ALTER SUBSCRIPTION shop SET (slot_name = NONE)")


def test_slot_in_danger(pair: Pair) -> None:
    """First there is a warning, while the slot can still be saved; then it is lost."""
    publisher = pair.publisher
    pair.subscribe()
    pair.subscriber.query("ALTER SUBSCRIPTION shop DISABLE")
    publisher.query("ALTER SYSTEM SET max_slot_wal_keep_size = '32MB'")
    publisher.query("SELECT pg_reload_conf()")

    def more_wal(document: dict[str, Any]) -> bool:
        publisher.query("SELECT pg_logical_emit_message(false, '', repeat('x', 3000000))")
        return "slot-in-danger" in ids(document)

    try:
        document = wait_for_status(pair.subscriber, more_wal)
        (finding,) = (f for f in document["findings"] if f["id"] == "slot-in-danger")
        assert finding["side"] == "publisher"
        assert "max_slot_wal_keep_size" in finding["remedy"]

        def lost(document: dict[str, Any]) -> bool:
            more_wal(document)
            publisher.query("CHECKPOINT")
            return "slot-lost" in ids(document)

        assert wait_for_status(pair.subscriber, lost)["verdict"] == "error"
    finally:
        publisher.query("ALTER SYSTEM RESET max_slot_wal_keep_size")
        publisher.query("SELECT pg_reload_conf()")


def test_copy(pair: Pair, weft: Weft) -> None:
    """A copy that waits for a lock is shown, with its table."""
    for server in (pair.publisher, pair.subscriber):
        server.query("CREATE TABLE t (id int PRIMARY KEY, v text)")
    pair.publisher.query("CREATE PUBLICATION p FOR TABLE t")
    pair.publisher.query("INSERT INTO t SELECT g, 'x' FROM generate_series(1, 1000) g")
    with pair.subscriber.connect(autocommit=False) as connection:
        connection.execute("LOCK TABLE t IN EXCLUSIVE MODE")
        subscription = threading.Thread(target=pair.subscribe)
        subscription.start()
        document = wait_for_status(
            pair.subscriber,
            lambda d: (
                d["copies"] and d["subscriptions"] and only(d)["state"] in ("blocked", "copying")
            ),
        )
        assert document["copies"][0]["table"] == "public.t"
        shown = weft("status", server=pair.subscriber)
        assert "Copying 1 table" in shown.stdout
    subscription.join()
    document = wait_for_status(pair.subscriber, lambda d: only(d)["state"] == "streaming")
    assert document["copies"] == []


def test_chosen_subscriptions(pair: Pair, weft: Weft) -> None:
    pair.subscribe("shop")
    pair.subscribe("other")
    document = status_of(pair.subscriber, "shop")
    assert [s["name"] for s in document["subscriptions"]] == ["shop"]
    done = weft("status", "shop", "nothing", server=pair.subscriber)
    assert done.returncode == ExitCode.REFUSED
    assert 'there is no subscription "nothing"' in done.stderr


def test_ordinary_role(pair: Pair, weft: Weft) -> None:
    """Without rights, the subscriber's figures are shown, and a note says what is missing."""
    pair.subscribe()
    server = pair.subscriber
    role = f"reader_{next_number()}"
    server.query(f"CREATE ROLE {role} LOGIN")
    conninfo = server.conninfo.replace("user=postgres", f"user={role}")
    try:
        done = weft("status", "-o", "json", "-d", conninfo)
        assert done.returncode == ExitCode.FINE, done.stderr
        document = json.loads(done.stdout)
        assert only(document)["publisher"] is None
        (finding,) = document["findings"]
        assert (finding["id"], finding["severity"]) == ("publisher-unknown", "info")
        assert "--publisher" in finding["remedy"]
        done = weft("status", "-o", "json", "-d", conninfo,
                    "--publisher", pair.publisher.conninfo)  # fmt: skip
        assert only(json.loads(done.stdout))["publisher"]["slot_active"] is True
    finally:
        server.query(f"DROP ROLE {role}")


def test_wrong_publisher(pair: Pair) -> None:
    """ "localhost" on another machine is another server."""
    pair.subscribe()
    document = status_of(pair.subscriber, "--publisher", pair.subscriber.conninfo)
    assert only(document)["publisher"] is None
    (finding,) = document["findings"]
    assert "it is not the publisher" in finding["problem"]
    assert document["verdict"] == "ok"


OLD_NAMES = {
    "apply_lag_bytes": "lag_bytes",
    "publisher_lsn": "x1", "publisher_lsn_time": "x2", "publisher_lag_bytes": "x3",
    "apply_rate": "x4", "apply_rate_bytes": "x5", "catch_up_time": "x6",
    "last_error": "x7", "last_error_time": "x8", "last_error_lsn": "x9",
}  # fmt: skip


def test_older_extension(pair: Pair) -> None:
    """Before it told about the publisher, and rates."""
    pair.subscribe()
    for new, old in OLD_NAMES.items():
        if pair.subscriber.query(
            "SELECT 1 FROM pg_attribute WHERE attrelid = 'weft.stat_subscription'::regclass"
            " AND attname = %s",
            new,
        ):
            pair.subscriber.query(f"ALTER VIEW weft.stat_subscription RENAME {new} TO {old}")
    # which needs the new names
    if pair.subscriber.value("SELECT to_regproc('weft.health')"):
        pair.subscriber.query("ALTER FUNCTION weft.health RENAME TO not_yet")
    document = status_of(pair.subscriber)
    subscription = only(document)
    assert subscription["state"] == "streaming"
    assert subscription["behind_bytes"] is not None
    assert subscription["transactions_per_second"] is not None


def test_nagios(pair: Pair, weft: Weft) -> None:
    pair.subscribe()
    pair.wait_for_apply()
    done = weft("status", "--nagios", server=pair.subscriber)
    assert re.fullmatch(
        r"WEFT OK - 1 subscription, at most \S+ k?B and \d.\d s behind"
        r" \| 'shop_behind'=\d+B;1073741824;17179869184;0 'shop_time'=\d\.\ds;60;600;0"
        r" 'shop_rate'=[\d.]+;;;0\n",
        done.stdout,
    ), done.stdout
    assert (done.returncode, done.stderr) == (0, "")

    pair.subscriber.query("ALTER SUBSCRIPTION shop DISABLE")
    done = weft("status", "--nagios", server=pair.subscriber)
    assert done.stdout.startswith("WEFT WARNING - shop: disabled | ")
    assert done.returncode == 1

    pair.publisher.query("INSERT INTO t SELECT g, repeat('x', 500) FROM generate_series(1, 5000) g")
    done = weft("status", "--nagios", "--critical-bytes", "1MB", server=pair.subscriber)
    assert done.stdout.startswith("WEFT CRITICAL - "), done.stdout
    assert done.returncode == 2

    done = weft("status", "--nagios", "-h", "/nowhere")
    assert done.stdout.startswith("WEFT CRITICAL - cannot connect")
    assert (done.returncode, done.stdout.count("\n")) == (2, 1)
    pair.subscriber.query("DROP EXTENSION weft CASCADE")
    done = weft("status", "--nagios", server=pair.subscriber)
    assert done.stdout.startswith("WEFT UNKNOWN - ")
    assert done.returncode == 3


def on_terminal(pair: Pair, width: int, *arguments: str, **environment: str) -> str:
    """What the command writes to a terminal of this width."""
    command = ("status", *arguments, "-d", pair.subscriber.conninfo)
    with Terminal(*command, width=width, environment=environment) as terminal:
        assert terminal.finish() == ExitCode.FINDINGS
        return terminal.raw.replace("\r\n", "\n")


@pytest.mark.parametrize("width", [80, 160])
def test_terminal(pair: Pair, width: int) -> None:
    pair.subscribe()
    pair.subscribe("with_a_rather_long_name_" + 39 * "x")
    pair.subscriber.query("ALTER SUBSCRIPTION shop DISABLE")
    colored = on_terminal(pair, width)
    assert f"{ESCAPE}[1;33mWARNING" in colored
    color = re.compile(rf"{ESCAPE}\[[\d;]*3\dm")
    for plain in (
        on_terminal(pair, width, "--no-color"),
        on_terminal(pair, width, NO_COLOR="1"),
    ):
        assert not color.search(plain)
    text = re.sub(rf"{ESCAPE}\[[\d;]*m", "", colored)
    lines = text.splitlines()
    assert lines[0].rstrip() == "WARNING  1 problem, 2 subscriptions"
    assert max(map(len, lines)) <= width
    # All columns are there, each heading in one piece.
    headings = next(line for line in lines if line.startswith("subscription")).split()
    assert headings[:6] == ["subscription", "state", "behind", "time", "rate", "left"]
    assert ("errors" in headings) == (width == 160)
    assert "…" not in text


def test_piped(pair: Pair, weft: Weft) -> None:
    pair.subscribe()
    done = weft("status", server=pair.subscriber, environment={"TERM": "xterm-256color"})
    assert ESCAPE not in done.stdout
    assert "errors" in done.stdout


def test_watch(pair: Pair) -> None:
    """The server may be restarted meanwhile; an interrupt ends it."""
    pair.subscribe()
    process = watching(pair.subscriber)
    assert process.stdout and process.stderr
    try:
        assert json.loads(process.stdout.readline())["kind"] == "status"
        pair.subscriber.run("pg_ctl", "stop", "-D", str(pair.subscriber.data), "-m", "fast")
        complaint = process.stderr.readline()
        assert complaint.startswith("UNREACHABLE")
        pair.subscriber.start()
        drain(process)
        assert json.loads(process.stdout.readline())["kind"] == "status"
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def drain(process: subprocess.Popen[str]) -> None:
    """Reads what it still complains, so that it never waits for the pipe."""
    threading.Thread(target=process.stderr.read, daemon=True).start()  # type: ignore[union-attr]


def test_control_characters(pair: Pair, weft: Weft) -> None:
    """A name cannot change what the terminal shows."""
    name = f"evil{ESCAPE}[2Jname"
    pair.subscribe()
    pair.subscriber.query(f'ALTER SUBSCRIPTION shop RENAME TO "{name}"')
    wait_for(
        lambda: pair.subscriber.value("SELECT count(*) FROM pg_stat_subscription WHERE pid > 0"),
        "the worker to start again",
    )
    done = weft("status", server=pair.subscriber)
    assert ESCAPE not in done.stdout
    assert "evil" in done.stdout
