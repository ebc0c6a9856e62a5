"""Reads the pages in docs/ and README.md, and finds what is wrong with them.

What a page says to the test that runs it (test/docs) is in comments, which readers do not see:

    <!-- servers: old.example ready 15; new.example weft -->
        The page is run with these servers.  "ready" stands for settings with which a server can
        publish and subscribe, "weft" for these and Weft, "group" for those of a node group, "15"
        for another major version, and "later" for a server that the page itself creates.
    <!-- no servers -->
        The page is run, and creates all servers itself.
    <!-- on: new.example shop -->
        The next blocks "sql" are run on this server, in this database, and the next block "conf"
        is appended to its postgresql.conf, and the server restarted.  A connection string stands
        for a server that commands of the page have started.
    <!-- test: COMMANDS -->
        Commands for the shell that a reader does not need.
    <!-- not run: REASON -->
        The next block is not run.
    <!-- page not run: REASON -->
        No block of the page is run.

A block "sh" is run by one shell, which keeps its variables until the page ends.  A block "text"
is what the block before it prints; "…" in it stands for anything, and a line with nothing else
for any number of lines.  Started without arguments, this program

- finds commands that are neither run nor have a reason why not;
- follows the links of all pages, to files and headings;
- finds pages that docs/index.md does not list;
- finds messages that docs/errors.md explains and the source does not have.
"""

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from list_messages import messages

TREE = Path(__file__).resolve().parents[1]
DOCS = TREE / "docs"

# Pages that another tool keeps up to date, and that therefore have no comments for this one.
NOT_RUN = {
    "benchmarks.md": "the calls take hours; bench/tables makes the tables from their results",
    "performance.md": "the calls take hours; the page says when they were measured",
}

COMMANDS = {"sh", "sql", "conf"}
# What is shown to be read, or to be given to another program.
OTHER = {"ini", "json", "mermaid", "python", "toml", "yaml"}
COMMENT = (
    r"<!-- (?P<word>no servers|(?:servers|on|test|not run|page not run)(?=:)):?(?P<said>.*?)-->"
)
FENCE = r"(?P<indent> *)```(?P<kind>[\w{}-]*)\n(?P<text>.*?)^(?P=indent)```$"
PARTS = re.compile(f"^{COMMENT}$|^{FENCE}", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\[[^\]\[]*\]\(([^)\s]+)\)")
NAMED_SERVER = re.compile(r"(?P<name>[a-z][\w.-]*)(?P<words>( \w+)*)")


class PageError(Exception):
    """Something in a page that this program or the test does not understand."""


@dataclass(frozen=True)
class NamedServer:
    name: str
    words: frozenset[str]

    @property
    def major(self) -> int | None:
        return next((int(word) for word in self.words if word.isdigit()), None)


@dataclass
class Block:
    line: int
    kind: str
    text: str
    server: str = ""
    database: str = "postgres"
    expected: str | None = None
    # where "expected" is in the page
    place: tuple[int, int] = (0, 0)
    # why it is not run
    reason: str = ""


@dataclass
class Page:
    path: Path
    servers: list[NamedServer]
    blocks: list[Block]
    is_run: bool = False

    @property
    def name(self) -> str:
        return self.path.stem


def unindented(text: str, indent: str) -> str:
    return "".join(line.removeprefix(indent) for line in text.splitlines(keepends=True))


class PageReader:
    def __init__(self, path: Path):
        self.page = Page(path, [], [])
        self.last: Block | None = None
        self.reason = ""
        self.page_reason = NOT_RUN.get(path.name, "") if path.parent == DOCS else ""
        self.server = ""
        self.database = "postgres"
        self.text = path.read_text()
        for match in PARTS.finditer(self.text):
            line = self.text.count("\n", 0, match.start()) + 1
            try:
                if match["word"]:
                    self.comment(match["word"], match["said"].strip(), line)
                else:
                    self.block(match, line)
            except PageError as error:
                raise PageError(f"{path.name}:{line}: {error}") from None

    def comment(self, word: str, said: str, line: int) -> None:
        if not said and word != "no servers":
            raise PageError(f'"{word}" says nothing')
        if word == "no servers":
            self.page.is_run = True
        elif word == "servers":
            self.page.is_run = True
            for part in said.split(";"):
                if not (match := NAMED_SERVER.fullmatch(part.strip())):
                    raise PageError(f'"{part}" is no server')
                self.page.servers.append(
                    NamedServer(match["name"], frozenset(match["words"].split()))
                )
            self.server = self.page.servers[-1].name
        elif word == "on":
            if "=" in said:
                self.server = said
                return
            if "=" in said:
                self.server = said
                return
            self.server, _, database = said.partition(" ")
            self.database = database or self.database
            if self.server not in {server.name for server in self.page.servers}:
                raise PageError(f"there is no server {self.server}")
        elif word == "test":
            self.page.blocks.append(Block(line, "sh", said + "\n"))
            self.last = None
        elif word == "not run":
            self.reason, self.last = said, None
        else:
            self.page_reason = said

    def block(self, match: re.Match[str], line: int) -> None:
        kind, text = match["kind"], unindented(match["text"], match["indent"])
        reason = self.reason or self.page_reason
        if kind == "text" and self.last is not None and not self.last.reason:
            self.last.expected, self.last.place = text, match.span("text")
            self.last = None
            return
        if kind == "text" and not (reason or self.last):
            raise PageError("nothing prints this")
        if kind not in COMMANDS | OTHER | {"text"} and not kind.startswith("{") and not reason:
            raise PageError(f'a block of kind "{kind}", not {", ".join(sorted(COMMANDS | OTHER))}')
        self.reason, self.last = "", None
        if kind in COMMANDS:
            if not reason and not self.page.is_run:
                raise PageError("this is not run, and no comment says why")
            block = Block(line, kind, text, self.server, self.database, reason=reason)
            self.page.blocks.append(block)
            self.last = block


def read_page(path: Path) -> Page:
    return PageReader(path).page


def all_pages() -> list[Path]:
    return [TREE / "README.md", *sorted(DOCS.glob("**/*.md"))]


def other_documents() -> list[Path]:
    """Documents for contributors, whose commands are not run."""
    return [*TREE.glob("[A-Z]*.md"), *TREE.glob("*/README.md")]


def pages_to_run() -> list[Page]:
    return [page for page in map(read_page, all_pages()) if page.is_run]


def headings(path: Path) -> set[str]:
    """The names by which links reach the headings of a page, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)
    found: set[str] = set(re.findall(r"^\(([\w-]+)\)=$", text, re.MULTILINE))
    for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title).strip().lower()
        name = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 0
        while (unique := f"{name}-{number}" if number else name) in found:
            number += 1
        found.add(unique)
    return found


def wrong_links(path: Path) -> Iterator[str]:
    text = path.read_text()
    for match in LINK.finditer(text):
        target, _, anchor = match[1].partition("#")
        where = f"{path.relative_to(TREE)}:{text.count(chr(10), 0, match.start()) + 1}"
        if re.match(r"\w+:", target):
            continue
        file = (path.parent / target).resolve() if target else path
        if not file.exists():
            yield f"{where}: there is no {target}"
        elif anchor and file.suffix == ".md" and anchor not in headings(file):
            yield f"{where}: {file.name} has no heading #{anchor}"


def unlisted_pages() -> Iterator[str]:
    listed = set(LINK.findall((DOCS / "index.md").read_text()))
    for path in sorted(DOCS.glob("**/*.md")):
        name = path.relative_to(DOCS).as_posix()
        if name not in listed | {"index.md"}:
            yield f"docs/index.md: there is no link to {name}"


def unknown_messages() -> Iterator[str]:
    """A message that docs/errors.md explains, as a heading, must be one of the source."""
    known = {message.text for message in messages(TREE)}
    for message in re.findall(r"^### `(.*)`$", (DOCS / "errors.md").read_text(), re.MULTILINE):
        if message not in known:
            yield f"docs/errors.md: no source has the message: {message}"


def findings() -> list[str]:
    found: list[str] = []
    for path in all_pages():
        try:
            read_page(path)
        except PageError as error:
            found.append(str(error))
    for path in {*all_pages(), *other_documents()}:
        found += wrong_links(path)
    return sorted([*found, *unlisted_pages(), *unknown_messages()])


if __name__ == "__main__":
    problems = findings()
    print("\n".join(problems), end="\n" if problems else "")
    sys.exit(1 if problems else 0)
