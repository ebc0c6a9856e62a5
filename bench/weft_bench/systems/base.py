"""What a system under test has to be able to do.

A system is told apart from the others by nothing but its class; the servers are filled and
configured alike for all.
"""

from __future__ import annotations

from collections.abc import Callable

import psycopg

from ..arguments import Options
from ..build import Build
from ..pair import ABSOLUTE_TIMEOUT, Pair, wait_until
from ..server import Server, value_of

Report = Callable[[float], None]
Look = Callable[[], None]


def nothing(*_: object) -> None:
    pass


def wait_for_tables(
    pair: Pair, query: str, what: str, at: Report = nothing, look: Look = nothing
) -> None:
    """Waits until the query, asked of the subscriber, says true.  "at" is told in percent how far
    the COPYs are, "look" is called now and then."""
    rows = getattr(pair.contents, "rows", 0) or 1
    with pair.subscriber.connect() as here:

        def done() -> bool:
            pair.check_daemons()
            copied = value_of(
                here,
                "SELECT coalesce(sum(tuples_processed), 0)::bigint FROM pg_stat_progress_copy",
            )
            at(100 * copied / rows)
            look()
            return bool(value_of(here, query))

        wait_until(done, what, ABSOLUTE_TIMEOUT)


class System:
    name: str
    # Which of the builds it runs on.
    build_name = "server"
    # Numbers of parallel workers, for a system that has a choice.
    writers: int | None = None
    has_subscriber = True
    # Where the servers of the pair come from: names of servers in the template.
    sources = {"publisher": "publisher", "subscriber": "subscriber"}  # noqa: RUF012
    # What synchronous_standby_names calls the subscriber, if it can be synchronous.
    synchronous_name: str | None = None
    # The publisher's slot that shows what the subscriber has flushed, if there is one.
    slot: str | None = None
    # Whether the rows are copied when it connects: they are not in the buffers then.
    copies_again = False
    # Whether it can be measured through a line between the servers.
    remote = True
    # Whether the subscriber is to flush each commit before it goes on.
    synchronous_commit = False
    # Schemas of the queues that it keeps in tables.
    queues: tuple[str, ...] = ()
    # Whether it can drain a backlog that was built before, together with other systems: it needs
    # nothing in the publisher's tables, and its own settings only once it starts.
    shares = False

    @property
    def label(self) -> str:
        return self.name if self.writers is None else f"{self.name}, {self.writers} writers"

    def refusal(self, scenario: str) -> str | None:
        """Why it takes no part in a scenario."""
        return None

    def refusal_of(self, options: Options) -> str | None:
        """Why it takes no part in a scenario with these options."""
        if options.line and not self.remote:
            return "it is set up through local sockets only"
        if "publisher" in options.synchronous and self.has_subscriber and not self.synchronous_name:
            return "no publisher can wait for it"
        return self.refusal(options.scenario)

    def publisher_settings(self, build: Build) -> dict[str, object]:
        """What the publisher's configuration has beyond that of the other systems."""
        return {}

    def subscriber_settings(self, build: Build) -> dict[str, object]:
        return {}

    def start(self, pair: Pair, publisher: dict, subscriber: dict) -> None:
        pair.publisher.start({**publisher, **self.publisher_settings(pair.build)})
        pair.subscriber.start({**subscriber, **self.subscriber_settings(pair.build)})

    def prepare(self, pair: Pair) -> None:
        """Everything before the subscriber asks for the data."""

    def connect(self, pair: Pair) -> None:
        """Starts to replicate between servers that hold the same rows."""

    def reserve(self, publisher: Server) -> None:
        """Before a shared backlog is built: whatever it will read that from."""

    def reserve_settings(self, build: Build) -> dict[str, object]:
        """What the publisher's configuration needs for that."""
        return {}

    def start_held(self, pair: Pair, publisher: dict, subscriber: dict) -> None:
        """Starts the servers where the publisher has a shared backlog, which the subscriber does
        not apply yet."""
        self.start(pair, publisher, subscriber)

    def attach(self, pair: Pair) -> None:
        """Sets up what is to apply the shared backlog, without letting it go."""

    def detach(self, pair: Pair) -> None:
        """The publisher is going to be replaced."""

    def pause(self, pair: Pair) -> None:
        """Holds the subscriber back.  It is up to date."""
        raise NotImplementedError

    def resume(self, pair: Pair, subscriber: psycopg.Connection) -> None:
        raise NotImplementedError

    def copy(self, pair: Pair, at: Report, look: Look) -> None:
        """The initial copy; "at" is told how far it is in percent, "look" is called now and
        then."""
        raise NotImplementedError

    def slot_of(self, pair: Pair) -> str | None:
        return self.slot

    def vacuum_queues(self, pair: Pair) -> None:
        """Systems that keep their queues in tables rely on autovacuum, which is off, for deleting
        what they no longer need and for plans that fit the size of the queue."""
        for server in pair.running() if self.queues else ():
            tables = server.value(
                "SELECT string_agg(c.oid::regclass::text, ', ') FROM pg_class c "
                "JOIN pg_namespace n ON n.oid = c.relnamespace "
                "WHERE c.relkind = 'r' AND n.nspname = ANY (%s)",
                [list(self.queues)],
            )
            if tables:
                server.execute(f"VACUUM (ANALYZE) {tables}")

    def release_wal(self, pair: Pair) -> None:
        """Lets checkpoints recycle WAL that slots on a subscriber have kept."""

    def shared_mb(self, pair: Pair) -> float:
        """Memory that its processes share, beyond that of a server without it."""
        return 0

    def verify(self, pair: Pair, scenario: str) -> str | None:
        """Raises an error if something else than this system was measured; gives what is to be
        known about the figures."""
        return None
