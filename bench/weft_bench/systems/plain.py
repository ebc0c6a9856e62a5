"""No replication: two plain binary COPYs side by side, then the indexes."""

from __future__ import annotations

import os
import subprocess
import threading
from typing import Any

from ..errors import BenchError
from ..pair import Pair
from ..server import at_once, value_of
from .base import Look, Report, System
from .deferred import PARALLEL, drop_indexes, make_indexes


class Plain(System):
    name = "plain"

    def refusal(self, scenario: str) -> str | None:
        return None if scenario == "copy" else "it copies once, it does not replicate"

    def pipe(self, pair: Pair, first: int, last: int) -> None:
        """psql to psql, since a library that hands each row to Python would be measured."""
        table = pair.contents.tables[0]
        condition = f"ctid >= '({first},0)' AND ctid < '({last},0)'"
        environment = {**os.environ, **pair.build.environment, "PGAPPNAME": "plain copy"}

        def psql(conninfo: str, statement: str, **streams: Any) -> subprocess.Popen:
            return subprocess.Popen(
                (*pair.subscriber.place.prefix, pair.build.program("psql"), "-X", "-q", "-d",
                 conninfo, "-v", "ON_ERROR_STOP=1", "-c", statement),
                start_new_session=True, env=environment, **streams,
            )  # fmt: skip

        source = psql(
            pair.publisher.remote_conninfo,
            f"COPY (SELECT * FROM {table} WHERE {condition}) TO STDOUT (FORMAT binary)",
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        )  # fmt: skip
        target = psql(
            pair.subscriber.conninfo,
            f"COPY {table} FROM STDIN (FORMAT binary)",
            stdin=source.stdout,
        )
        assert source.stdout is not None
        source.stdout.close()
        if source.wait() + target.wait() != 0:
            raise BenchError("a plain COPY failed")

    def copy(self, pair: Pair, at: Report, look: Look) -> None:
        table = pair.contents.tables[0]
        pages = pair.publisher.value(
            f"SELECT pg_relation_size('{table}') / current_setting('block_size')::int"
        )
        bounds = [pages * part // PARALLEL for part in range(PARALLEL)] + [pages]
        ranges = list(zip(bounds, bounds[1:]))

        errors: list[BaseException] = []

        def everything() -> None:
            try:
                at_once(*(lambda r=r: self.pipe(pair, *r) for r in ranges))
                make_indexes(pair)
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
        drop_indexes(pair)
