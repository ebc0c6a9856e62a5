"""What ends the tests ends their servers, too."""

import signal
import sys


def pytest_configure() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: sys.exit(128 + number))
