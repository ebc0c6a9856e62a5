"""Commands on members of a node group."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import Pair, Weft
from servers import Server, created, own_programs
from weft_cli.exit_code import ExitCode

SETTINGS = """
    track_commit_timestamp = on
    output_plugin_libraries = 'pgoutput, test_decoding, weft'
    """


@pytest.fixture(scope="module")
def group(directory: Path) -> Iterator[Pair]:
    """Nodes "a" and "b"; a row of b differs, without anything being under way."""
    programs = own_programs()
    a, b = (Server(directory / name, programs, SETTINGS, weft=True) for name in "ab")
    with created(a, b):
        for server in (a, b):
            server.use_new_database("shop")
            server.query("CREATE EXTENSION weft")
            server.query("SELECT weft.create_node(%s, %s)", server.name, server.conninfo)
        a.query("CREATE TABLE t (id int PRIMARY KEY, v int)")
        a.query("INSERT INTO t SELECT g, 0 FROM generate_series(1, 100) g")
        a.query("SELECT weft.create_node_group('g')")
        b.query("SELECT weft.join_node_group(%s, 'g')", a.conninfo)
        b.query("SELECT weft.wait_for_join_completion('60 s')")
        with b.connect() as session:
            # Changes with an origin are not sent to other members.
            session.execute("SELECT pg_replication_origin_create('planted')")
            session.execute("SELECT pg_replication_origin_session_setup('planted')")
            session.execute("UPDATE t SET v = 7 WHERE id = 7")
        yield Pair(publisher=a, subscriber=b)


def test_compares_and_repairs(group: Pair, weft: Weft) -> None:
    done = weft("compare", "--node", "a", server=group.subscriber)
    assert done.returncode == ExitCode.FINDINGS, done.stdout + done.stderr
    assert 'with node "a"' in done.stdout
    assert "v: 0 there, 7 here" in done.stdout
    number = str(group.subscriber.value("SELECT max(comparison) FROM weft.comparison"))

    done = weft(
        "repair", number, "--winner", "a", "--dry-run", "-o", "json", server=group.subscriber
    )
    assert done.returncode == ExitCode.FINE, done.stderr
    (change,) = json.loads(done.stdout)["changes"]
    assert change["key"] == {"id": "7"}
    assert change["change"]
    assert group.subscriber.value("SELECT v FROM t WHERE id = 7") == 7

    done = weft("repair", number, "--winner", "a", "--yes", server=group.subscriber)
    assert done.returncode == ExitCode.FINE, done.stdout + done.stderr
    assert group.subscriber.value("SELECT v FROM t WHERE id = 7") == 0
    done = weft("compare", "--node", "a", server=group.subscriber)
    assert done.returncode == ExitCode.FINE, done.stdout + done.stderr


def test_group_keeps_its_slots(group: Pair, weft: Weft) -> None:
    (subscription,) = group.subscriber.query(
        "SELECT subname FROM pg_subscription WHERE subslotname IS NOT NULL"
    )[0]
    done = weft("adopt", subscription, "--plugin", "pgoutput", "--yes", server=group.subscriber)
    assert done.returncode == ExitCode.REFUSED, done.stdout + done.stderr
    assert "belongs to a node group" in done.stdout
