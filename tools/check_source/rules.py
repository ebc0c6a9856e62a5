"""The rules themselves.  Each yields what it finds wrong."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Union

from .c_source import CSource
from .readme import ROOT, Readme
from .sql_source import SqlSource
from .tree import Module, Tree

MAX_FILE = 700
MAX_FUNCTION = 80

# ring/ knows nothing of tuples.
TUPLES = re.compile(r"access/(htup|heap|tup)|executor/|catalog/|replication/logicalproto\.h")

# A file that a comment or document names; those of the server, and placeholders.
NAMED_FILE = re.compile(r"(?<![\w.$*/-])((?:[\w-]+/)*[\w-]+\.(?:c|h|sql))\b(?![\w*])")
NOT_OF_THE_TREE = {"x.c", "x.h", "replication/conflict.h", "tablesync.c"}


@dataclass(frozen=True, order=True)
class Finding:
    # relative to the root of the tree
    path: str
    line: int
    text: str
    # folders that it concerns, for those who ask for some of them only
    folders: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


class Checker:
    def __init__(self, tree: Tree):
        self.tree = tree
        self.readme = Readme(tree.src / "README.md")

    def at(self, source: Union[CSource, SqlSource], line: int, text: str) -> Finding:
        path = source.path.relative_to(self.tree.root)
        folder = path.parts[1] if path.parts[0] == "src" and len(path.parts) > 2 else ROOT
        return Finding(path.as_posix(), line, text, (folder if path.parts[0] == "src" else "sql",))

    def in_readme(self, line: int, text: str, folder: str = "") -> Finding:
        path = self.readme.path.relative_to(self.tree.root)
        return Finding(path.as_posix(), line, text, (folder,) if folder else ())

    def findings(self) -> list[Finding]:
        rules = (
            self.readme_is_readable,
            self.folders_match,
            self.modules_match,
            self.variables_match,
            self.stems_are_unique,
            self.includes_are_allowed,
            self.there_is_no_cycle,
            self.headers_are_of_one_module,
            self.versions_are_tested_in_compat,
            self.ring_knows_no_tuples,
            self.nothing_is_too_long,
            self.named_files_exist,
        )
        return sorted({finding for rule in rules for finding in rule()})

    def readme_is_readable(self) -> Iterator[Finding]:
        for line, problem in self.readme.problems:
            yield self.in_readme(line, problem)

    def folders_match(self) -> Iterator[Finding]:
        there = {module.folder for module in self.tree.modules.values()}
        for name, listed in self.readme.folders.items():
            if name.endswith(".c"):
                if name[:-2] not in self.tree.modules:
                    yield self.in_readme(listed.line, f"there is no file {name}")
            elif name not in there:
                yield self.in_readme(listed.line, f"there is no folder {name}/")
        for folder in sorted(there - set(self.readme.folders)):
            yield self.in_readme(1, f"the table of folders lacks {folder}", folder)

    def modules_match(self) -> Iterator[Finding]:
        modules = self.tree.modules
        for name, listed in self.readme.modules.items():
            if name not in modules:
                folder = name.rpartition("/")[0] or ROOT
                yield self.in_readme(listed.line, f"there is no module {name}", folder)
        for name in sorted(modules.keys() - self.readme.modules):
            text = f"the list of modules lacks {name}"
            yield self.in_readme(1, text, modules[name].folder)

    def variables_match(self) -> Iterator[Finding]:
        there = {}
        for module in self.tree.modules.values():
            for declared in module.body.declarations if module.body else ():
                if not declared.words & {"static", "extern"}:
                    for name in declared.variables:
                        there[name] = (module, declared.line)
        for name, (module, line) in there.items():
            assert module.body
            listed = self.readme.variables.get(name)
            if not listed:
                text = f"{name} is not static, and not in the README's table of variables"
                yield self.at(module.body, line, text)
            elif listed.module != module.name:
                text = f"{name} is a variable of module {module.name}, not {listed.module}"
                yield self.in_readme(listed.line, text, module.folder)
        for name, listed in self.readme.variables.items():
            if name not in there:
                folder = listed.module.rpartition("/")[0] or ROOT
                yield self.in_readme(listed.line, f"there is no external variable {name}", folder)

    def stems_are_unique(self) -> Iterator[Finding]:
        seen: dict[str, Module] = {}
        for module in self.tree.modules.values():
            if other := seen.get(module.stem):
                for one, two in ((module, other), (other, module)):
                    yield self.at(one.files[0], 1, f"has the stem of module {two.name}")
            seen[module.stem] = module

    def includes_are_allowed(self) -> Iterator[Finding]:
        for module in self.tree.modules.values():
            for file in module.files:
                row = self.readme.folders.get(self.tree.name_in_src(file.path))
                row = row or self.readme.folders.get(module.folder)
                if not row or row.everything:
                    continue
                for include in file.includes:
                    header = self.tree.own_header(file, include)
                    target = self.tree.module_of(header).folder if header else module.folder
                    if target != module.folder and target not in row.allowed:
                        which = "the root" if module.folder == ROOT else f"{module.folder}/"
                        text = f"{which} must not include {include.name}"
                        yield self.at(file, include.line, text)

    def there_is_no_cycle(self) -> Iterator[Finding]:
        for cycle in self.tree.cycles():
            file, include = self.tree.uses[cycle[0]][cycle[1]]
            found = self.at(file, include.line, "cycle: " + " -> ".join([*cycle, cycle[0]]))
            folders = tuple(sorted({self.tree.modules[name].folder for name in cycle}))
            yield Finding(found.path, found.line, found.text, folders)

    def headers_are_of_one_module(self) -> Iterator[Finding]:
        for module in self.tree.modules.values():
            if module.header:
                yield from self.header_declares_own(module)
            if module.body:
                yield from self.body_declares_in_header(module)

    def header_declares_own(self, module: Module) -> Iterator[Finding]:
        assert module.header
        defined = set()
        for declared in module.body.declarations if module.body else ():
            if "extern" not in declared.words and "static" not in declared.words:
                defined.update(declared.variables)
            if declared.is_definition:
                defined.add(declared.function)
        for declared in module.header.declarations:
            if "static" in declared.words or declared.is_definition:
                continue
            for name in [declared.function] if declared.function else declared.variables:
                if name not in defined:
                    text = f"{name} is declared here, but not defined in {module.name}.c"
                    yield self.at(module.header, declared.line, text)

    def body_declares_in_header(self, module: Module) -> Iterator[Finding]:
        assert module.body
        announced: set[str] = set()
        for declared in module.header.declarations if module.header else ():
            announced.update(declared.variables)
            announced.add(declared.function)
        # These are called by name, through SQL or by the postmaster.
        by_name = set(re.findall(r"PG_FUNCTION_INFO_V1\s*\(\s*(\w+)", module.body.code))
        for declared in module.body.declarations:
            if "PGDLLEXPORT" in declared.words and declared.function:
                by_name.add(declared.function)
        externs = [
            declared.line
            for declared in module.body.declarations
            if "extern" in declared.words and "PGDLLEXPORT" not in declared.words
        ]
        for line in externs + module.body.local_externs:
            text = "extern in a .c file; include the header that declares it"
            yield self.at(module.body, line, text)
        for declared in module.body.declarations:
            if not declared.is_definition and not declared.variables:
                continue
            if declared.words & {"static", "extern"}:
                continue
            names = declared.variables or [declared.function]
            for name in names:
                if name and name not in announced | by_name and name != "_PG_init":
                    text = f"{name} is not static, but {module.name}.h does not declare it"
                    yield self.at(module.body, declared.line, text)
        if module.header and module.header not in [
            self.tree.own_header(module.body, include) for include in module.body.includes
        ]:
            yield self.at(module.body, 1, f"does not include {module.name}.h")

    def versions_are_tested_in_compat(self) -> Iterator[Finding]:
        for module in self.tree.modules.values():
            for file in module.files:
                if self.tree.name_in_src(file.path) != "compat.h":
                    for line in file.version_tests:
                        yield self.at(file, line, "only compat.h may test the server's version")

    def ring_knows_no_tuples(self) -> Iterator[Finding]:
        for module in self.tree.modules.values():
            for file in module.files if module.folder == "ring" else []:
                for include in file.includes:
                    for way in self.tuples_behind(file, include.name, include.quoted, set()):
                        text = f"ring/ must not know tuples: {' -> '.join(way)}"
                        yield self.at(file, include.line, text)

    def tuples_behind(
        self, file: CSource, name: str, quoted: bool, seen: set[str]
    ) -> Iterator[list[str]]:
        """The ways from an include to a header about tuples, through headers of the tree."""
        if TUPLES.match(name):
            yield [name]
        for include in file.includes:
            if include.name != name or include.quoted != quoted:
                continue
            header = self.tree.own_header(file, include)
            if header and self.tree.module_of(header).folder == "ring":
                continue
            if header and header.path.as_posix() not in seen:
                seen.add(header.path.as_posix())
                for further in header.includes:
                    for way in self.tuples_behind(header, further.name, further.quoted, seen):
                        yield [name, *way]

    def nothing_is_too_long(self) -> Iterator[Finding]:
        for module in self.tree.modules.values():
            for file in module.files:
                functions = [
                    (declared.function, declared.line, declared.last_line)
                    for declared in file.declarations
                    if declared.is_definition
                ]
                yield from self.too_long(file, functions)
        for part in self.tree.sql:
            yield from self.too_long(part, [(f.name, f.line, f.last_line) for f in part.functions])

    def named_files_exist(self) -> Iterator[Finding]:
        for module in self.tree.modules.values():
            for file in module.files:
                for line, name in self.missing_files(file.comments):
                    yield self.at(file, line, f"there is no file {name}")
        for part in self.tree.sql:
            for line, name in self.missing_files(part.comments):
                yield self.at(part, line, f"there is no file {name}")
        for document in self.tree.documents:
            path = document.relative_to(self.tree.root).as_posix()
            lines = enumerate(document.read_text().split("\n"), 1)
            for line, name in self.missing_files(lines):
                yield Finding(path, line, f"there is no file {name}")

    def missing_files(self, lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
        for line, text in lines:
            for name in NAMED_FILE.findall(text):
                if name not in self.tree.paths | NOT_OF_THE_TREE:
                    yield line, name

    def too_long(
        self, file: Union[CSource, SqlSource], functions: list[tuple[str, int, int]]
    ) -> Iterator[Finding]:
        excused = bool(re.search(rf"\bLonger than {MAX_FILE} lines because \S", file.head))
        if (length := len(file.lines)) > MAX_FILE and not excused:
            text = f"{length} lines, more than {MAX_FILE}, and its head does not say why"
            yield self.at(file, 1, text)
        elif length <= MAX_FILE and excused:
            yield self.at(file, 1, f"says why it is longer than {MAX_FILE} lines, but is not")
        reason = rf"([\w.]+)\(\) is longer than {MAX_FUNCTION} lines because \S"
        reasons = set(re.findall(reason, file.head))
        for name, first, last in functions:
            if (length := last - first + 1) > MAX_FUNCTION:
                if name not in reasons:
                    text = f"{name}() has {length} lines, more than {MAX_FUNCTION}"
                    yield self.at(file, first, f"{text}, and the file's head does not say why")
                reasons.discard(name)
        for name in sorted(reasons):
            text = f"says why {name}() is longer than {MAX_FUNCTION} lines, but it is not"
            yield self.at(file, 1, text)
