"""Removes passwords from text that is shown."""

import re

HIDDEN = "********"

# key=value as libpq parses it: quoted, or up to the next space, both with backslashes.  In the text
# of a statement, the quotes are doubled.
_KEY = re.compile(
    r"((?:password|oauth_client_secret)\s*=\s*)"
    r"(''(?:[^'\\]|\\.)+''|'(?:[^'\\]|\\.)*'|(?:[^\s'\\]|\\.)(?:[^\s\\]|\\.)*)",
    re.IGNORECASE | re.DOTALL,
)
_URI = re.compile(r"(\b\w+://[^\s:/@]*:)[^\s/]*(?=@)")


def redact(text: str) -> str:
    """The text with passwords in connection strings and URIs replaced."""
    return _KEY.sub(rf"\1{HIDDEN}", _URI.sub(rf"\1{HIDDEN}", text))
