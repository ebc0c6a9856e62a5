"""A line between the servers: each in a network namespace of its own, with a round-trip time and
a rate.  Nothing but the two servers is reached through it."""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from .errors import BenchError, run
from .line import Line
from .place import Place, Places

SETUP = Path(__file__).with_name("link_setup.py")
# As an ordinary user: in a user namespace, in which that user owns network namespaces.
NAMESPACE = ("unshare", "--user", "--map-current-user", "--keep-caps", "--net")
PORT = 5431

# Programs for measuring the line: one answers each byte with a byte, then takes everything; the
# other prints round-trip times in seconds, and the rate in bytes per second.
ANSWER = """
import socket, sys
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
print(flush=True)
peer = listener.accept()[0]
for _ in range(11):
    peer.sendall(peer.recv(1))
while peer.recv(65536):
    pass
"""
ASK = """
import json, socket, sys, time
peer = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
times = []
for _ in range(11):
    start = time.monotonic(); peer.sendall(b"x"); peer.recv(1)
    times.append(time.monotonic() - start)
size, start = int(sys.argv[3]), time.monotonic()
peer.sendall(bytes(size)); peer.shutdown(socket.SHUT_WR); peer.recv(1)
print(json.dumps([times[1:], size / (time.monotonic() - start)]))
"""


class LinkUnavailableError(Exception):
    """There can be no such line on this machine; the text gives the reason."""


class Link(AbstractContextManager):
    def __init__(self, line: Line):
        self.line = line
        self.about: dict[str, object] = {}
        self.process: subprocess.Popen | None = None
        self.namespaces: dict[str, tuple[str, ...]] = {}
        self.addresses: dict[str, str] = {}

    def __enter__(self) -> Link:
        try:
            self.begin()
        except BaseException:
            self.end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def begin(self) -> None:
        for program in ("unshare", "nsenter"):
            if shutil.which(program) is None:
                raise LinkUnavailableError(f"there is no program {program} (package util-linux)")
        self.process = subprocess.Popen(
            (*NAMESPACE, sys.executable, str(SETUP), str(self.line.rtt), str(self.line.rate)),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        assert self.process.stdout is not None and self.process.stderr is not None
        said = self.process.stdout.readline()
        if not said:
            reason = self.process.stderr.read().strip()
            raise LinkUnavailableError(
                f"this user may not create network namespaces: {reason} "
                "(see the settings user.max_user_namespaces and kernel.unprivileged_userns_clone)"
            )
        answer = json.loads(said)
        if "error" in answer:
            raise LinkUnavailableError(answer["error"])
        self.addresses = answer["addresses"]
        self.namespaces = {
            side: ("nsenter", f"--target={holder}", "--user", "--net", "--preserve-credentials")
            for side, holder in answer["holders"].items()
        }
        self.about = {"emulation": answer["emulation"], "asked": self.line.name, **self.measure()}

    def end(self) -> None:
        """Everything in the namespaces but servers, which have been stopped before, ends with the
        pipe; and the namespaces with the processes in them."""
        if self.process is None:
            return
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe:
                pipe.close()
        self.process = None

    def measure(self) -> dict[str, object]:
        """What the line really is like: the median round-trip time, and the rate of one
        connection for two seconds."""
        size = int(self.line.rate / 8 * 2) or 50_000_000
        at = (self.addresses["publisher"], str(PORT))
        answering = subprocess.Popen(
            (*self.namespaces["publisher"], sys.executable, "-c", ANSWER, *at),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, start_new_session=True,
        )  # fmt: skip
        try:
            assert answering.stdout is not None
            if not answering.stdout.read(1):
                raise LinkUnavailableError("nothing can listen in the publisher's namespace")
            said = run(*self.namespaces["subscriber"], sys.executable, "-c", ASK, *at, str(size))
        except BenchError as error:
            raise LinkUnavailableError(str(error)) from None
        finally:
            answering.kill()
            answering.wait()
            assert answering.stdout is not None
            answering.stdout.close()
        times, bytes_per_second = json.loads(said)
        return {
            "rtt_ms": round(statistics.median(times) * 1000, 3),
            "mbit": round(bytes_per_second * 8 / 1e6, 1),
        }

    def place(self, side: str) -> Place:
        return Place(namespace=self.namespaces[side], address=self.addresses[side])

    def places(self) -> Places:
        return Places(self.place("publisher"), self.place("subscriber"))
