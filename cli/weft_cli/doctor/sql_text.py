"""Statements for users to read and run, with names and values quoted."""

from psycopg import sql


def name(*parts: str) -> str:
    """A name, qualified if it has several parts."""
    return sql.Identifier(*parts).as_string(None)


def literal(value: str | int) -> str:
    return sql.Literal(value).as_string(None).strip()


def literals(values: list[str]) -> str:
    """The value of a parameter that is a list of names."""
    return ", ".join(literal(value) for value in values)


def alter_system(parameter: str, value: str) -> str:
    """The value is SQL already."""
    return f"ALTER SYSTEM SET {parameter} = {value};"


RELOAD = "SELECT pg_reload_conf();"
