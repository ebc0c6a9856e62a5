"""Lists the errors and warnings of the source, for docs/errors.md of the site.

A message's placeholders are shown as "…".  Without arguments, prints the list.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LITERAL = re.compile(r'"((?:[^"\\]|\\.)*)"')
STRING_PART = re.compile(
    r'\s*(?:"(?P<literal>(?:[^"\\]|\\.)*)"|(?P<macro>U?INT64_FORMAT|compat_\w+))'
)
CALL = re.compile(r"\b(errmsg|errmsg_plural|errdetail|errhint)\s*\(")
PLACEHOLDER = re.compile(r"%(?:[-+0-9.*#]*)(?:ll|l|z)?[a-zA-Z]|%[A-Z_]+")
RAISE = re.compile(r"RAISE\s+(EXCEPTION|WARNING)\s+('(?:[^']|'')*')(.*?);\n", re.DOTALL)
OPTION = r"\b{}\s*=\s*(?:format\(\s*)?'((?:[^']|'')*)'"


@dataclass(frozen=True, order=True)
class Message:
    text: str
    condition: str
    detail: str
    hint: str


def literals(text: str) -> str:
    """The string at the beginning of a C argument: literals, and macros such as INT64_FORMAT."""
    found = []
    position = 0
    while part := STRING_PART.match(text, position):
        found.append("…" if part["macro"] else part["literal"])
        position = part.end()
    plain = "".join(found).replace('\\"', '"').replace("\\\\", "\\")
    return PLACEHOLDER.sub("…", plain).replace("%%", "%")


def closing(text: str, start: int) -> int:
    """Where the parenthesis that opens at "start" is closed."""
    depth = 0
    position = start
    while position < len(text):
        if text[position] == '"' and (literal := LITERAL.match(text, position)):
            position = literal.end()
            continue
        depth += {"(": 1, ")": -1}.get(text[position], 0)
        if depth == 0:
            return position
        position += 1
    return position


def messages_of_c(text: str) -> Iterator[Message]:
    for match in re.finditer(r"\bereport\s*\(", text):
        call = text[match.end() : closing(text, match.end() - 1)]
        level = call.partition(",")[0].strip()
        if level.startswith("DEBUG") or level in ("LOG", "NOTICE"):
            continue
        parts: dict[str, str] = {}
        for part in CALL.finditer(call):
            parts.setdefault(part[1], literals(call[part.end() :]))
        condition = re.search(r"errcode\s*\(\s*ERRCODE_(\w+)", call)
        if said := parts.get("errmsg") or parts.get("errmsg_plural"):
            yield Message(
                said,
                condition[1].lower() if condition else "",
                parts.get("errdetail", ""),
                parts.get("errhint", ""),
            )


def messages_of_sql(text: str) -> Iterator[Message]:
    def plain(literal: str) -> str:
        return re.sub(r"%[sILt]?", "…", literal.replace("''", "'"))

    for match in RAISE.finditer(text):
        options = {
            name: found[1]
            for name in ("ERRCODE", "DETAIL", "HINT")
            if (found := re.search(OPTION.format(name), match[3]))
        }
        yield Message(
            plain(match[2][1:-1]),
            options.get("ERRCODE", ""),
            plain(options.get("DETAIL", "")),
            plain(options.get("HINT", "")),
        )


def messages(tree: Path) -> list[Message]:
    found: set[Message] = set()
    for path in tree.glob("src/**/*.c"):
        found.update(messages_of_c(path.read_text()))
    for path in tree.glob("sql/[0-9]*.sql"):
        found.update(messages_of_sql(path.read_text()))
    return sorted((each for each in found if re.search(r"\w\w", each.text)),
                  key=lambda each: (each.text.lower().lstrip('"…% '), each))  # fmt: skip


def table_of_messages(tree: Path) -> str:
    lines = ["| message | condition | detail and hint |", "|---|---|---|"]
    for each in messages(tree):
        more = " ".join(part for part in (each.detail, each.hint) if part)
        cells = (f"`{each.text}`", each.condition, more)
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table_of_messages(Path(__file__).resolve().parents[1]))
