"""What the demos say about servers must be true: copies, comparisons, members that are cut off."""

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import pytest
from demo_common import DemoError, Server, compare, value_of
from demo_contest import idle_share
from demo_group import Matrix, Member, connect_again, cut_off

WITHOUT_WEFT = "wal_level = logical\n"


@pytest.fixture
def directory() -> Iterator[Path]:
    # The path of a socket must be short.
    with TemporaryDirectory(prefix="demo-") as name:
        yield Path(name)


@pytest.fixture
def servers(directory: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    for name in [name for name in os.environ if name.startswith("PG")]:
        monkeypatch.delenv(name)
    with ExitStack() as cleanup:
        yield cleanup


def test_a_copy_has_the_same_rows_until_one_is_changed(directory: Path, servers: ExitStack) -> None:
    first = Server(directory / "first", "work_mem = 5MB")
    second = Server(directory / "second", "work_mem = 6MB")
    for server in (first, second):
        servers.callback(server.stop)
    first.create()
    first.start()
    with first.connect() as connection:
        connection.execute("CREATE TABLE t AS SELECT g AS id, 'x' AS v FROM generate_series(1,9) g")
    first.shut_down()
    second.create_from(first)
    first.start()
    second.start()
    assert compare([first, second], ["t"]) == {"t": 9}

    with second.connect() as connection:
        assert value_of(connection, "SHOW work_mem") == "6MB"
        connection.execute("UPDATE t SET v = 'y' WHERE id = 5")
    with pytest.raises(DemoError, match="t differs: 9 rows on first, 9 on second"):
        compare([first, second], ["t"])


def test_members_that_are_cut_off_do_not_reach_each_other(
    directory: Path, servers: ExitStack
) -> None:
    members = [Member(directory / name, WITHOUT_WEFT) for name in "abc"]
    a, b, c = members
    for member in members:
        servers.callback(member.stop)
        member.create()
        member.start()
        member.run(*(f"CREATE ROLE {other.role} SUPERUSER LOGIN" for other in members))

    assert a.accepts(c.role) and c.accepts(a.role)
    existing = psycopg.connect(f"{a.dsn} user={c.role}")
    with existing:
        cut_off(c, [a, b])
        with pytest.raises(psycopg.OperationalError):
            existing.execute("SELECT 1")
    with pytest.raises(psycopg.OperationalError, match="rejects"):
        psycopg.connect(f"{a.dsn} user={c.role} replication=database")
    assert not b.accepts(c.role) and not c.accepts(a.role) and not c.accepts(b.role)
    assert a.accepts(b.role) and b.accepts(a.role)
    assert c.value("SELECT 1") == 1  # its clients do reach it

    connect_again(members)
    assert a.accepts(c.role) and c.accepts(b.role)


def test_missing_transactions_are_those_of_the_others(directory: Path) -> None:
    matrix = Matrix([Member(directory / name, "") for name in "ab"])
    matrix.have = {"a": {"a": 7, "b": 2}, "b": {"a": 4, "b": 5}}
    assert matrix.missing("a") == 3
    assert matrix.missing("b") == 3
    matrix.have = {"a": {"a": 7}, "b": {"a": 7}}
    assert matrix.missing("a") == matrix.missing("b") == 0


def test_idle_time_is_a_share() -> None:
    assert 0 <= idle_share(0.05) <= 1
