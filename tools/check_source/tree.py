"""The C files of the tree, by module, and which module uses which."""

from collections import defaultdict
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Optional

from .c_source import CSource, Include
from .readme import ROOT
from .sql_source import SqlSource


def without_suffix(path: str) -> str:
    return path.rpartition(".")[0]


@dataclass
class Module:
    """x.c and x.h, or one of them."""

    # relative to src/, without a suffix
    name: str
    header: Optional[CSource] = None
    body: Optional[CSource] = None

    @property
    def files(self) -> list[CSource]:
        return [file for file in (self.body, self.header) if file]

    @property
    def stem(self) -> str:
        return self.name.rpartition("/")[2]

    @property
    def folder(self) -> str:
        return self.name.rpartition("/")[0] or ROOT


@dataclass
class Tree:
    root: Path
    modules: dict[str, Module] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for path in sorted(self.src.glob("**/*.[ch]")):
            name = without_suffix(self.name_in_src(path))
            module = self.modules.setdefault(name, Module(name))
            if path.suffix == ".h":
                module.header = CSource(path)
            else:
                module.body = CSource(path)

    @property
    def src(self) -> Path:
        return self.root / "src"

    @cached_property
    def documents(self) -> list[Path]:
        return sorted(
            [*self.root.glob("*.md"), *self.root.glob("docs/*.md"), self.src / "README.md"]
        )

    @cached_property
    def paths(self) -> set[str]:
        """What comments and documents may call each file: a path, or any end of it."""
        found: set[str] = set()
        for folder in ("src", "sql", "test"):
            for path in self.root.glob(f"{folder}/**/*.*"):
                parts = path.relative_to(self.root).parts
                found.update("/".join(parts[i:]) for i in range(len(parts)))
        return found

    @cached_property
    def sql(self) -> list[SqlSource]:
        return [SqlSource(path) for path in sorted(self.root.glob("sql/[0-9]*.sql"))]

    def name_in_src(self, path: Path) -> str:
        return path.relative_to(self.src).as_posix()

    def own_header(self, source: CSource, include: Include) -> Optional[CSource]:
        """The header of this tree that an include means, if it is not the server's."""
        for folder in (source.path.parent, self.src) if include.quoted else (self.src,):
            path = (folder / include.name).resolve()
            if path.is_file() and self.src.resolve() in path.parents:
                name = without_suffix(path.relative_to(self.src.resolve()).as_posix())
                return self.modules[name].header
        return None

    def module_of(self, source: CSource) -> Module:
        return self.modules[without_suffix(self.name_in_src(source.path))]

    @cached_property
    def uses(self) -> dict[str, dict[str, tuple[CSource, Include]]]:
        """For each module, the others that it includes, and where it does so first."""
        found: dict[str, dict[str, tuple[CSource, Include]]] = defaultdict(dict)
        for module in self.modules.values():
            for file in module.files:
                for include in file.includes:
                    header = self.own_header(file, include)
                    if header and (used := self.module_of(header).name) != module.name:
                        found[module.name].setdefault(used, (file, include))
        return found

    def cycles(self) -> list[list[str]]:
        """For each module that needs itself through others, a shortest way from it to itself."""
        found = set()
        for start in self.modules:
            cycle = self.shortest_way_back(start)
            first = cycle.index(min(cycle)) if cycle else 0
            found.add(tuple(cycle[first:] + cycle[:first]))
        return [list(cycle) for cycle in sorted(found) if cycle]

    def shortest_way_back(self, start: str) -> list[str]:
        ways = [[start]]
        seen: set[str] = set()
        while ways:
            way = ways.pop(0)
            for used in sorted(self.uses.get(way[-1], {})):
                if used == start:
                    return way
                if used not in seen:
                    seen.add(used)
                    ways.append([*way, used])
        return []
