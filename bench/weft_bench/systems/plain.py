"""No replication: two plain binary COPYs side by side, then the indexes."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import Any

from ..contents import CopyContents
from ..errors import BenchError
from ..pair import Pair
from ..server import Server, at_once, value_of
from .base import Look, Report, System

PIPES = 2


class Plain(System):
    name = "plain"

    def refusal(self, scenario: str) -> str | None:
        return None if scenario == "copy" else "it copies once, it does not replicate"

    def pipe(self, pair: Pair, first: int, last: int) -> None:
        """psql to psql, since a library that hands each row to Python would be measured."""
        table = pair.contents.tables[0]
        condition = f"ctid >= '({first},0)' AND ctid < '({last},0)'"
        environment = {**os.environ, **pair.build.environment, "PGAPPNAME": "plain copy"}

        def psql(server: Server, statement: str, **streams: Any) -> subprocess.Popen:
            return subprocess.Popen(
                (pair.build.program("psql"), "-X", "-q", *server.socket_options, "-d", "postgres",
                 "-v", "ON_ERROR_STOP=1", "-c", statement),
                start_new_session=True, env=environment, **streams,
            )  # fmt: skip

        source = psql(
            pair.publisher,
            f"COPY (SELECT * FROM {table} WHERE {condition}) TO STDOUT (FORMAT binary)",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        )  # fmt: skip
        target = psql(
            pair.subscriber, f"COPY {table} FROM STDIN (FORMAT binary)", stdin=source.stdout
        )
        assert source.stdout is not None
        source.stdout.close()
        if source.wait() + target.wait() != 0:
            raise BenchError("a plain COPY failed")

    def copy(self, pair: Pair, at: Report, look: Look) -> None:
        contents = pair.contents
        assert isinstance(contents, CopyContents)
        table = contents.tables[0]
        pages = pair.publisher.value(
            f"SELECT pg_relation_size('{table}') / current_setting('block_size')::int"
        )
        bounds = [pages * part // PIPES for part in range(PIPES)] + [pages]
        ranges = list(zip(bounds, bounds[1:]))

        errors: list[BaseException] = []

        def everything() -> None:
            try:
                at_once(*(lambda r=r: self.pipe(pair, *r) for r in ranges))
                self.make_indexes(pair, contents)
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=everything, daemon=True)
        thread.start()
        size = f"SELECT pg_relation_size('{table}') / current_setting('block_size')::int"
        with pair.subscriber.connect() as here:
            while thread.is_alive():
                at(100 * value_of(here, size) / max(pages, 1))
                look()
                thread.join(0.1)
        if errors:
            raise errors[0]

    def prepare(self, pair: Pair) -> None:
        """What is dropped here takes no part of the time."""
        contents = pair.contents
        assert isinstance(contents, CopyContents)
        table = contents.tables[0]
        pair.subscriber.execute(f"ALTER TABLE {table} DROP CONSTRAINT {contents.KEY}")
        for name, _ in contents.indexes:
            pair.subscriber.execute(f"DROP INDEX {name}")

    def make_indexes(self, pair: Pair, contents: CopyContents) -> None:
        """As many side by side as there were COPYs."""
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

        at_once(*[work] * PIPES)
        pair.subscriber.execute(
            f"ALTER TABLE {table} ADD CONSTRAINT {contents.KEY} PRIMARY KEY USING INDEX "
            f"{contents.KEY}"
        )
