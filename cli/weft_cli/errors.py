"""Errors that end a command: one line for the user, and an exit status."""

from weft_cli.exit_code import ExitCode
from weft_cli.redact import redact


class WeftError(Exception):
    """Its message is safe to print; the hint, if there is one, says what to do."""

    exit_code = ExitCode.REFUSED

    def __init__(self, message: str, hint: str = ""):
        super().__init__(redact(message))
        self.hint = redact(hint)


class BadUsage(WeftError):
    """The arguments make no sense, which only shows once they are used."""

    exit_code = ExitCode.USAGE


class Unreachable(WeftError):
    """There is no connection, or no answer within the time limit."""

    exit_code = ExitCode.UNREACHABLE


class MissingRights(WeftError):
    """The role may not do this."""


class NoExtension(WeftError):
    """The server or database has no Weft, or one without this feature."""


class Refused(WeftError):
    """The server refused a statement for another reason; the SQLSTATE says which."""

    def __init__(self, message: str, hint: str = "", sqlstate: str | None = None):
        super().__init__(message, hint)
        self.sqlstate = sqlstate
