"""Tables like pgbench's accounts, but with keys of other types."""

from __future__ import annotations

from .contents import Contents, Report, fill_in_chunks
from .server import Server


class KeyedContents(Contents):
    """One table.  A transaction updates a row of each third of it, and inserts one, so it is as
    large as one of pgbench."""

    name: str
    # The columns of the key with their types, and their names alone.
    key: str
    key_names: str
    # The key of the row number i, and that of a new row.
    value: str
    new_value: str
    source = ""
    ROWS_PER_SCALE = 100_000
    THIRDS = ("first", "second", "third")

    def __init__(self, scale: int):
        self.rows = scale * self.ROWS_PER_SCALE
        self.tables = (self.name,)

    def make(self, server: Server, at: Report, filled: bool) -> None:
        server.execute(
            f"CREATE TABLE {self.name} ({self.key}, balance bigint NOT NULL, changed timestamptz, "
            f"filler char(84), PRIMARY KEY ({self.key_names}))"
        )
        # Not a default of the column: only the publisher has a use for it.
        server.execute(f"CREATE SEQUENCE {self.name}_numbers START {self.rows + 1}")
        fill_in_chunks(
            server,
            f"INSERT INTO {self.name} SELECT {self.value}, 0, NULL, '' "
            "FROM generate_series(%s::integer, %s::integer) i",
            self.rows, at,
        )  # fmt: skip

    def disk(self) -> int:
        return self.rows * 220

    def condition(self, variable: str) -> str:
        """Of the row whose number is in the variable of pgbench."""
        value = self.value.replace("i::", f":{variable}::")
        return f"({self.key_names}) = ({value})"

    @property
    def script(self) -> str:
        third = self.rows // len(self.THIRDS)
        # The rows ascend, so that there are no deadlocks.
        choice = "".join(
            f"\\set {name} random({number * third + 1}, {(number + 1) * third})\n"
            for number, name in enumerate(self.THIRDS)
        )
        updates = "".join(
            f"UPDATE {self.name} SET balance = balance + :delta, changed = now()\n"
            f"    WHERE {self.condition(name)};\n"
            for name in self.THIRDS
        )
        return (
            f"{choice}\\set delta random(-5000, 5000)\nBEGIN;\n{updates}"
            f"INSERT INTO {self.name} SELECT {self.new_value}, :delta, now(), ''{self.source};\n"
            "END;\n"
        )


class UuidContents(KeyedContents):
    """Random keys: the rows of neighbouring keys are not neighbours."""

    name = "uuid_keys"
    key = "id uuid"
    key_names = "id"
    value = "md5(i::text)::uuid"
    new_value = "gen_random_uuid()"


class CompositeContents(KeyedContents):
    """Two columns: a tenant, of which there are a thousand, and a number."""

    name = "composite_keys"
    key = "tenant integer, id bigint"
    key_names = "tenant, id"
    value = "mod(i::integer, 1000), i::bigint"
    new_value = "mod(n, 1000)::integer, n"
    source = " FROM nextval('composite_keys_numbers') n"
