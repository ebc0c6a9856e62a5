"""Names in SQL that users are told to run, or that is run for them."""


def identifier(name: str) -> str:
    """Always quoted: which words are reserved depends on the server's version."""
    return '"' + name.replace('"', '""') + '"'
