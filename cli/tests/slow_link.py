"""A network that is slower than both servers."""

import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

from servers import Link, Server


class SlowLink(Link):
    def __init__(self, directory: Path, server: Server, bytes_per_second: float):
        super().__init__(directory, server.directory / ".s.PGSQL.5432")
        self.bytes_per_second = bytes_per_second
        self.conninfo = f"host={directory} port=5432 user=postgres dbname={server.database}"

    def _pass_on(
        self, source: socket.socket, target: socket.socket, ended: threading.Semaphore
    ) -> None:
        with suppress(OSError):
            while data := source.recv(8192):
                time.sleep(len(data) / self.bytes_per_second)
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        ended.release()
