"""What the exit status of the command tells a script."""

from enum import IntEnum


class ExitCode(IntEnum):
    FINE = 0
    FINDINGS = 1
    USAGE = 2
    # No connection, for whatever reason (a wrong password as well), or no answer in time.
    UNREACHABLE = 3
    # There is a connection, but the server cannot or will not: rights, no Weft, an older one.
    REFUSED = 4
