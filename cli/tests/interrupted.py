"""Runs the command, and stops it at the statement that the environment names.

WEFT_STOP_AT   the number of the statement among those that change something
WEFT_STOP_HOW  after: kill -9 when it has ended.  during: kill -9 when the server has got it, and
               nobody waits for the answer.  pause: before it, say so, and wait for a line of input
"""

import os
import signal
import sys
from typing import Any, cast

import psycopg

from weft_cli.main import run
from weft_cli.server import Server

STOP_AT = int(os.environ["WEFT_STOP_AT"])
STOP_HOW = os.environ["WEFT_STOP_HOW"]

_real_execute = Server.execute
_count = 0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def send_only(server: Server, sql: str, params: tuple[Any, ...]) -> None:
    text = psycopg.ClientCursor(server.connection).mogrify(cast(Any, sql), params or None)
    server.connection.pgconn.send_query(text.encode())
    while server.connection.pgconn.flush():
        pass


def execute(self: Server, sql: str, *params: Any) -> None:
    global _count
    if "set_config" not in sql:
        _count += 1
    stop = _count == STOP_AT and "set_config" not in sql
    if stop and STOP_HOW == "during":
        send_only(self, sql, params)
        die()
    if stop and STOP_HOW == "pause":
        print("paused", flush=True)
        sys.stdin.readline()
    _real_execute(self, sql, *params)
    if stop and STOP_HOW == "after":
        die()


Server.execute = execute  # type: ignore[method-assign]
sys.exit(run())
