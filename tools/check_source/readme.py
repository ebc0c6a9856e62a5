"""Reads from src/README.md what is allowed, and what is said to be there.

Three things there are read, each found by its heading: the table of folders, the list of
modules, and the table of external variables.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

FOLDERS = ["folder", "job", "may include"]
VARIABLES = ["variable", "module", "why it is global"]
MODULES_HEADING = "## Modules"
MODULE = re.compile(r"- `([\w/]+)`: \S")

# the files of src/ itself
ROOT = "root"


@dataclass
class Listed:
    """What a line of the README says of a folder, a module or a variable."""

    line: int
    allowed: set[str] = field(default_factory=set)
    everything: bool = False
    module: str = ""


class Readme:
    def __init__(self, path: Path):
        self.path = path
        self.problems: list[tuple[int, str]] = []
        self.folders: dict[str, Listed] = {}
        self.modules: dict[str, Listed] = {}
        self.variables: dict[str, Listed] = {}
        self.lines = path.read_text().splitlines()
        self.read_folders()
        self.read_modules()
        self.read_variables()

    def table(self, header: list[str]) -> Iterator[tuple[int, list[str]]]:
        inside = found = False
        for number, line in enumerate(self.lines, 1):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not line.startswith("|"):
                inside = False
            elif cells == header:
                inside = found = True
            elif inside and not set(line) <= set("|-: "):
                if len(cells) == len(header):
                    yield number, cells
                else:
                    self.problems.append((number, f"not {len(header)} cells"))
        if not found:
            self.problems.append((1, f"no table with the columns {', '.join(header)}"))

    def read_folders(self) -> None:
        for number, (names, _, may_include) in self.table(FOLDERS):
            listed = Listed(number)
            for part in may_include.split(","):
                name = part.strip().strip("`").rstrip("/")
                if name == "all":
                    listed.everything = True
                elif name in self.folders:
                    listed.allowed.add(name)
                elif name != "nothing":
                    text = f'"{part.strip()}" is no folder of a row above this one'
                    self.problems.append((number, text))
            name = names.strip("`").rstrip("/")
            if name in self.folders:
                self.problems.append((number, f"{name} is listed twice"))
            self.folders[name] = listed

    def read_modules(self) -> None:
        inside = False
        for number, line in enumerate(self.lines, 1):
            if line.startswith("## "):
                inside = line == MODULES_HEADING
            elif inside and line.startswith("- "):
                match = MODULE.match(line)
                if not match:
                    self.problems.append((number, 'not of the form "- `module`: its job"'))
                elif match[1] in self.modules:
                    self.problems.append((number, f"module {match[1]} is listed twice"))
                else:
                    self.modules[match[1]] = Listed(number)
        if not self.modules:
            self.problems.append((1, f'no modules below "{MODULES_HEADING}"'))

    def read_variables(self) -> None:
        for number, (names, module, why) in self.table(VARIABLES):
            if not why:
                self.problems.append((number, "no reason is given"))
            for name in re.findall(r"`(\w+)`", names):
                if name in self.variables:
                    self.problems.append((number, f"variable {name} is listed twice"))
                self.variables[name] = Listed(number, module=module.strip("`"))
