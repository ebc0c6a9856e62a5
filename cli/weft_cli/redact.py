"""Removes passwords from text that is shown."""

import re

HIDDEN = "********"

# key=value as libpq parses it: quoted with backslashes, or up to the next space
_KEY = re.compile(r"\b((?:ssl)?password\s*=\s*)('(?:[^'\\]|\\.)*'|[^\s'&]+)", re.IGNORECASE)
_URI = re.compile(r"(\b\w+://[^\s:/@]*:)[^\s/]*(?=@)")


def redact(text: str) -> str:
    """The text with passwords in connection strings and URIs replaced."""
    return _KEY.sub(rf"\1{HIDDEN}", _URI.sub(rf"\1{HIDDEN}", text))
