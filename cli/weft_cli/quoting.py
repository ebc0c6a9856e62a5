"""Names in SQL and commands that users are told to run, or that are run for them."""

import shlex


def identifier(name: str) -> str:
    """Always quoted: which words are reserved depends on the server's version."""
    return '"' + name.replace('"', '""') + '"'


def literal(value: str) -> str:
    """A string constant."""
    quoted = value.replace("'", "''")
    return f"'{quoted}'" if "\\" not in value else " E'" + quoted.replace("\\", "\\\\") + "'"


def word(value: str) -> str:
    """One word for a shell.  Names may begin with a dash."""
    return f"-- {shlex.quote(value)}" if value.startswith("-") else shlex.quote(value)
