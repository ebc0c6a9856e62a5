"""Reads a C file far enough to know its includes and what it declares at the top level."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

COMMENT_OR_STRING = re.compile(
    r"""/\*.*?\*/ | //[^\n]* | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])*'""",
    re.DOTALL | re.VERBOSE,
)
DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
VERSION_TEST = re.compile(r"\b(PG_VERSION_NUM|PG_MAJORVERSION_NUM|CATALOG_VERSION_NO)\b")
LOCAL_EXTERN = re.compile(r"^[ \t]+extern\b")

# Words before a declaration that say nothing about what is declared.
NOT_A_NAME = re.compile(r"\b(pg_attribute_\w+|__attribute__)\s*\(+[^()]*\)+")
CALL = re.compile(r"\b(\w+)\s*\(\s*(\*\s*(\w+))?")


@dataclass(frozen=True)
class Include:
    line: int
    name: str
    quoted: bool


@dataclass(frozen=True)
class Declaration:
    """Something at the top level of a file, from its first word to its ";" or "}"."""

    line: int
    last_line: int
    # with one space between words, and "{}" for whatever is in braces
    text: str
    is_definition: bool

    @property
    def words(self) -> set[str]:
        return set(re.findall(r"\w+", self.text.partition("(")[0]))

    @cached_property
    def function(self) -> str:
        """The name of the function that is declared or defined, or ""."""
        text = NOT_A_NAME.sub("", self.text).partition("=")[0]
        call = CALL.search(text)
        if "typedef" in self.words or not call or call[2]:
            return ""
        # Without a type before its name, it is the use of a macro.
        before = text[: call.start()].split()
        return call[1] if before and "{}" not in text[: call.start()] else ""

    @cached_property
    def variables(self) -> list[str]:
        """The names of the variables that are declared or defined."""
        text = NOT_A_NAME.sub("", self.text).partition("=")[0].strip()
        if self.is_definition or "typedef" in self.words:
            return []
        call = CALL.search(text)
        if call:
            return [call[3]] if call[2] else []
        names = []
        for part in text.split(","):
            name = re.search(r"(\w+)\s*(\[.*\])?$", part.strip())
            names.append(name[1] if name else "")
        kind_only = re.fullmatch(r"(\w+ )*(struct|union|enum) \w+", text)
        if len(text.replace("*", " ").split()) < 2 or kind_only or "" in names:
            return []
        return names


def blank(match: re.Match) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def keep_quotes(match: re.Match) -> str:
    """Strings lose their contents, so that braces in them are not counted."""
    text = match[0]
    return blank(match) if text.startswith("/") else text[0] + " " * (len(text) - 2) + text[-1]


def declarations(code: str) -> Iterator[Declaration]:
    """What stands at the top level of code without comments and directives."""
    text = ""
    braces = parentheses = 0
    line = first = 1
    for character in code:
        if character == "\n":
            line += 1
        if character == "{" and parentheses == 0:
            braces += 1
            if braces == 1:
                text += "{"
        elif character == "}" and parentheses == 0:
            braces -= 1
            if braces == 0:
                text += "}"
                if re.search(r"\)\s*\{\}$", text):
                    words = " ".join(text[:-2].split())
                    yield Declaration(first, line, words, True)
                    text = ""
        elif braces == 0:
            parentheses += {"(": 1, ")": -1}.get(character, 0)
            if character == ";" and parentheses == 0:
                if text.strip():
                    yield Declaration(first, line, " ".join(text.split()), False)
                text = ""
            elif text or not character.isspace():
                if not text:
                    first = line
                text += character


class CSource:
    def __init__(self, path: Path):
        self.path = path
        self.text = path.read_text()
        self.lines = self.text.splitlines()

    @cached_property
    def head(self) -> str:
        """The comment that the file begins with, as one line."""
        match = re.match(r"\s*/\*(.*?)\*/", self.text, re.DOTALL)
        return " ".join(re.sub(r"\n\s*\*", "\n", match[1]).split()) if match else ""

    @cached_property
    def code(self) -> str:
        without_comments = COMMENT_OR_STRING.sub(keep_quotes, self.text)
        return DIRECTIVE.sub(blank, without_comments)

    @cached_property
    def includes(self) -> list[Include]:
        found = []
        for number, line in enumerate(self.lines, 1):
            if match := INCLUDE.match(line):
                found.append(Include(number, match[2], match[1] == '"'))
        return found

    @cached_property
    def version_tests(self) -> list[int]:
        text = re.sub(COMMENT_OR_STRING, keep_quotes, self.text)
        return [n for n, line in enumerate(text.split("\n"), 1) if VERSION_TEST.search(line)]

    @cached_property
    def local_externs(self) -> list[int]:
        """The lines with declarations within a function of what another file defines."""
        return [n for n, line in enumerate(self.code.split("\n"), 1) if LOCAL_EXTERN.match(line)]

    @cached_property
    def comments(self) -> list[tuple[int, str]]:
        """The lines of all comments, with their numbers."""
        found = []
        for match in COMMENT_OR_STRING.finditer(self.text):
            if match[0].startswith("/"):
                first = self.text.count("\n", 0, match.start()) + 1
                found += list(enumerate(match[0].split("\n"), first))
        return found

    @cached_property
    def declarations(self) -> list[Declaration]:
        return list(declarations(self.code))
