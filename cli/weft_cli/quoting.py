"""Names in SQL and commands that users are told to run, or that are run for them."""

import shlex

from weft_cli.escape import CONTROL


def identifier(name: str) -> str:
    """Always quoted: which words are reserved depends on the server's version."""
    quoted = '"' + name.replace('"', '""') + '"'
    if not CONTROL.search(name):
        return quoted
    # Output would show other characters in place of these, so that the statement could not be run.
    escaped = quoted.replace("\\", "\\\\")
    return "U&" + CONTROL.sub(lambda match: f"\\{ord(match[0]):04x}", escaped)


def literal(value: str) -> str:
    """A string constant."""
    quoted = value.replace("'", "''")
    if "\\" not in value and not CONTROL.search(value):
        return f"'{quoted}'"
    escaped = quoted.replace("\\", "\\\\")
    return " E'" + CONTROL.sub(lambda match: f"\\u{ord(match[0]):04x}", escaped) + "'"


def word(value: str) -> str:
    """One word for a shell.  Names may begin with a dash."""
    return f"-- {shlex.quote(value)}" if value.startswith("-") else shlex.quote(value)
