"""Where a server runs: on which processors, and in which network namespace."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Place:
    """By default anywhere, reachable through a socket only."""

    # The command that starts another one in the namespace.
    namespace: tuple[str, ...] = ()
    # As "taskset --cpu-list" has them.
    cpus: str | None = None
    # On which the other server reaches it.
    address: str | None = None

    @property
    def on_cpus(self) -> tuple[str, ...]:
        return ("taskset", "--cpu-list", self.cpus) if self.cpus else ()

    @property
    def prefix(self) -> tuple[str, ...]:
        """What precedes a command that is to run there."""
        return (*self.namespace, *self.on_cpus)


@dataclass(frozen=True)
class Places:
    publisher: Place = Place()
    subscriber: Place = Place()
