"""Statements for users to read and run, with names and values quoted."""

from weft_cli import quoting


def name(*parts: str) -> str:
    """A name, qualified if it has several parts.

    Not with sql.Identifier, which needs a connection in psycopg 3.1.
    """
    return ".".join(quoting.identifier(part) for part in parts)


def literal(value: str | int) -> str:
    return quoting.literal(value).strip() if isinstance(value, str) else str(value)


def literals(values: list[str]) -> str:
    """The value of a parameter that is a list of names."""
    return ", ".join(literal(value) for value in values)


def alter_system(parameter: str, value: str) -> str:
    """The value is SQL already."""
    return f"ALTER SYSTEM SET {parameter} = {value};"


RELOAD = "SELECT pg_reload_conf();"
