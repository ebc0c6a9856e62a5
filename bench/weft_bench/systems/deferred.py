"""Copies of tables without indexes, which are made afterwards."""

from __future__ import annotations

from ..contents import CopyContents
from ..pair import Pair
from ..server import at_once
from .base import Look, Report
from .native import Native

# COPYs at the same time, and indexes.
PARALLEL = 2


def drop_indexes(pair: Pair) -> None:
    """Before the copy; this takes no part of the time."""
    contents = pair.contents
    assert isinstance(contents, CopyContents)
    pair.subscriber.execute(f"ALTER TABLE {contents.tables[0]} DROP CONSTRAINT {contents.KEY}")
    for name, _ in contents.indexes:
        pair.subscriber.execute(f"DROP INDEX {name}")


def make_indexes(pair: Pair) -> None:
    """As many at the same time as plain COPYs."""
    contents = pair.contents
    assert isinstance(contents, CopyContents)
    table = contents.tables[0]
    todo = [f"CREATE UNIQUE INDEX {contents.KEY} ON {table} (id)"] + [
        f"CREATE INDEX {name} ON {table} {columns}" for name, columns in contents.indexes
    ]

    def work() -> None:
        while todo:
            try:
                statement = todo.pop(0)
            except IndexError:
                return
            pair.subscriber.execute(statement)

    at_once(*[work] * PARALLEL)
    pair.subscriber.execute(
        f"ALTER TABLE {table} ADD CONSTRAINT {contents.KEY} PRIMARY KEY USING INDEX {contents.KEY}"
    )


class NativeDeferred(Native):
    """What a careful administrator does without Weft: the server's own copy into a table without
    indexes, and then the indexes."""

    name = "native-deferred"

    def refusal(self, scenario: str) -> str | None:
        return None if scenario == "copy" else "it differs from native in the initial copy only"

    def prepare(self, pair: Pair) -> None:
        super().prepare(pair)
        drop_indexes(pair)

    def copy(self, pair: Pair, at: Report, look: Look) -> None:
        super().copy(pair, at, look)
        make_indexes(pair)
