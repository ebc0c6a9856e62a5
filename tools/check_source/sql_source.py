"""Reads a part of the SQL install script far enough to know how long its functions are."""

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

CREATE = re.compile(r"CREATE (?:OR REPLACE )?(?:FUNCTION|PROCEDURE) ([\w.]+)")


@dataclass(frozen=True)
class SqlFunction:
    name: str
    line: int
    last_line: int


class SqlSource:
    def __init__(self, path: Path):
        self.path = path
        self.lines = path.read_text().splitlines()

    @cached_property
    def head(self) -> str:
        """The comment that the file begins with, as one line."""
        words: list[str] = []
        for line in self.lines:
            if not line.startswith("--"):
                break
            words += line[2:].split()
        return " ".join(words)

    @cached_property
    def comments(self) -> list[tuple[int, str]]:
        """The text of each line behind "--", with its number."""
        lines = enumerate(self.lines, 1)
        return [(n, line.partition("--")[2]) for n, line in lines if "--" in line]

    @cached_property
    def functions(self) -> list[SqlFunction]:
        found = []
        name, start, in_body = "", 0, False
        for number, line in enumerate(self.lines, 1):
            if not name and (match := CREATE.match(line)):
                name, start = match[1], number
            if line.count("$$") % 2:
                in_body = not in_body
            if name and not in_body and line.rstrip().endswith(";"):
                found.append(SqlFunction(name, start, number))
                name = ""
        return found
