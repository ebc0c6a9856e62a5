"""Two servers, clients, probes and a verdict; and a program that runs switch-overs on demand."""

import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import verdict
from clients import Clients, Probe, accepts_writes
from schema import CREATE, FILL, kinds_of
from servers import Server, created, own_programs


@dataclass
class Trial:
    """Both sides and what is going on; side 0 writes first."""

    servers: list[Server]
    clients: Clients
    probes: list[Probe]
    scale: int = 0
    # where writing has moved so far, as it should
    moved: list[int] = field(default_factory=list)
    # whether side 1 accepts writes until the first switch-over closes it
    initially_open: bool = False

    @property
    def writing(self) -> int:
        return self.moved[-1] if self.moved else 0

    def wait_for_writes(self, number: int = 50, side: int | None = None) -> None:
        verdict.wait_for_writes(self.clients, side, number)

    def findings(self) -> list[str]:
        """Holds the clients while it looks."""
        self.clients.hold()
        found = verdict.judge(
            self.clients, self.probes, self.servers, self.writing, self.moved, self.scale,
            self.initially_open,
        )  # fmt: skip
        found += self.wrong_sides()
        self.clients.release()
        return found

    def wrong_sides(self) -> list[str]:
        """The side that should accept writes now does, and the other one does not."""
        try:
            answers = [accepts_writes(server) for server in self.servers]
        except AssertionError as error:
            return [str(error)]
        if answers != [self.writing == side for side in (0, 1)]:
            return [f"sides that accept writes: {answers}, but side {self.writing} should"]
        return []

    def pauses(self) -> list[float]:
        return [pause.seconds for pause in verdict.pauses(self.clients.attempts())]

    def start_probe(self, side: int) -> None:
        self.probes[side].start()

    def __enter__(self) -> "Trial":
        self.clients.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for probe in self.probes:
            if probe.is_alive():
                probe.end()
        self.clients.__exit__(*error)
        if error[0] is not None:
            self.describe()

    def describe(self) -> None:
        print("outcomes:", dict(self.clients.outcomes()))
        print("problems:", dict(self.clients.problems()))
        for server in self.servers:
            print(f"log of {server.name}:", *server.complaints(), sep="\n    ")


def fill(server: Server, scale: int) -> None:
    server.query(FILL)
    if scale:
        server.run(
            "pgbench", "-h", str(server.directory), "-p", "5432", "-U", "postgres",
            "-i", "-q", "-I", "dtGvp", "-s", str(scale), "postgres",
        )  # fmt: skip
        server.query("ALTER TABLE pgbench_history REPLICA IDENTITY FULL")


@contextmanager
def pair(
    old: Path | None = None,
    new: Path | None = None,
    old_weft: bool = False,
    settings: str = "fsync = off",
    names: tuple[str, str] = ("old", "new"),
) -> Iterator[list[Server]]:
    """Two new servers; by default both from the programs under test, the second one with Weft."""
    with tempfile.TemporaryDirectory(
        prefix="weft-ledger-", ignore_cleanup_errors=bool(os.environ.get("KEEP"))
    ) as directory:
        servers = [
            Server(Path(directory) / names[0], old or own_programs(), settings, weft=old_weft),
            Server(Path(directory) / names[1], new or own_programs(), settings, weft=True),
        ]
        with created(*servers):
            yield servers


def prepare(servers: list[Server], scale: int = 0) -> None:
    """The tables of the ledger on both sides, with the same rows."""

    def one(server: Server) -> None:
        server.query(CREATE)
        fill(server, scale)

    threads = [threading.Thread(target=one, args=[server]) for server in servers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def trial_on(
    servers: list[Server], scale: int = 0, clients: int = 16, think_time: float = 0.005
) -> Trial:
    return Trial(
        servers,
        Clients(servers, kinds_of(scale), clients, think_time),
        [Probe(server) for server in servers],
        scale,
    )


def elapsed(since: float) -> float:
    return time.monotonic() - since
