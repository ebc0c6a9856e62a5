"""What must be true after a switch-over, found from the clients' ledgers and both servers.

Whether both sides ever accepted writes at the same time is told from outside, without trusting
either server.  Every success is an interval [start, end] within which its side accepted a
write: of the probes, which try one every few milliseconds on each side, and of the clients.
One interval is before another if it ends before the other one starts.  During one switch-over,
writing moves from one side to the other once.  Therefore, if there are successes a, b, c, each
before the next, with a and c on one side and b on the other, then writing moved twice: both
sides accepted writes.  While both do so for longer than it takes each probe to succeed twice,
there are such a, b and c; and clients that write on both sides make them likelier.

For shorter times, and for transactions that are open for long, each row has the time at which
its statement began (wrote_at), from the clock that both servers share: every row that was
written on the old side must be older than every row that was written on the new side.  With
track_commit_timestamp, the same is asked of the commits.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import psycopg
from clients import Clients, Probe
from schema import HOT_ROWS, SEQUENCES, TABLES, Attempt, Kind, compared_tables
from servers import Server, wait_for

# Seconds that one side may need to have everything of the other.
SETTLE_TIME = float(os.environ.get("WEFT_LEDGER_SETTLE", "60"))
# Most findings of one kind that are listed.
MOST = 5


@dataclass(frozen=True)
class Pause:
    """From the last acknowledged commit on one side to the first one on the other."""

    last: float
    first: float

    @property
    def seconds(self) -> float:
        return self.first - self.last


def few(findings: list[str]) -> list[str]:
    rest = len(findings) - MOST
    return findings if rest <= 0 else [*findings[:MOST], f"… and {rest} more like the last"]


def judge_rows(server: Server, attempts: Iterable[Attempt], kinds: list[Kind]) -> list[str]:
    """Acknowledged transactions once, refused ones never, unknown ones once or never."""
    expected = {kind.name: kind.rows for kind in kinds}
    found: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
    union = " UNION ALL ".join(
        f"SELECT '{table}', client, n, count(*)::int FROM ledger.{table} GROUP BY 2, 3"
        for table in TABLES
    )
    for table, client, n, rows in server.query(union):
        found[client, n][table] = rows
    findings = []
    for attempt in attempts:
        rows = dict(found.pop((attempt.client, attempt.n), {}))
        wanted = expected[attempt.kind]
        may_exist = attempt.outcome != "refused" and rows == wanted
        may_lack = attempt.outcome != "acknowledged" and not rows
        if not may_exist and not may_lack:
            word = "lost" if not rows else "doubled, in part, or not refused"
            findings.append(
                f"{word}: transaction {attempt.n} of client {attempt.client} ({attempt.kind},"
                f" {attempt.outcome} by side {attempt.side} at {attempt.end:.3f})"
                f" has left {rows or 'nothing'} instead of {wanted or 'nothing'}"
            )
    findings = few(findings)
    findings += few([f"rows {dict(rows)} of {key} come from nobody" for key, rows in found.items()])
    return findings


def judge_counters(server: Server, attempts: list[Attempt]) -> list[str]:
    """Every acknowledged update is contained, and each client has seen its counter grow."""
    findings = []
    own: Counter[int] = Counter()
    own_unknown: Counter[int] = Counter()
    hot: Counter[int] = Counter()
    hot_unknown: Counter[int] = Counter()
    last: dict[int, int] = {}
    for attempt in attempts:
        acknowledged = attempt.outcome == "acknowledged"
        if attempt.outcome == "refused":
            continue
        if attempt.kind in ("counter", "all"):
            (own if acknowledged else own_unknown)[attempt.client] += 1
            if acknowledged and attempt.returned is not None:
                if attempt.returned <= last.get(attempt.client, 0):
                    findings.append(
                        f"counter of client {attempt.client} went from"
                        f" {last[attempt.client]} to {attempt.returned} on side {attempt.side}"
                    )
                last[attempt.client] = attempt.returned
        elif attempt.kind == "hot":
            (hot if acknowledged else hot_unknown)[attempt.n % HOT_ROWS] += 1
    for table, key, known, unknown in (
        ("counter", "client", own, own_unknown),
        ("hot", "id", hot, hot_unknown),
    ):
        for row in server.query(f"SELECT {key} AS key, value FROM ledger.{table} WHERE {key} >= 0"):
            low, high = known[row.key], known[row.key] + unknown[row.key]
            if not low <= row.value <= high:
                findings.append(
                    f"{table} {row.key} is {row.value}, but {low} updates were acknowledged"
                    f" and {unknown[row.key]} are unknown"
                )
    return few(findings)


def judge_queue(server: Server, attempts: list[Attempt]) -> list[str]:
    """What was inserted and not deleted is there; deletes may have met unknown inserts."""
    inserted: dict[tuple[int, int], bool] = {}
    deleted: set[tuple[int, int]] = set()
    refilled: set[tuple[int, int]] = set()
    # clients whose unknown delete may have taken any of their rows
    uncertain: set[int] = set()
    for attempt in attempts:
        key = attempt.client, attempt.n
        if attempt.outcome == "refused":
            continue
        if attempt.kind == "refill":
            refilled.add(key)
        elif attempt.kind == "enqueue":
            inserted[key] = attempt.outcome == "acknowledged"
        elif attempt.kind == "dequeue":
            if attempt.outcome == "unknown":
                uncertain.add(attempt.client)
            elif attempt.target is not None:
                if (attempt.client, attempt.target) in deleted:
                    return [f"row {attempt.target} of {attempt.client} was deleted twice"]
                deleted.add((attempt.client, attempt.target))
    found = {
        tuple(row)
        for row in server.query('SELECT client, n FROM ledger."Queue ü" WHERE client >= 0')
    }
    findings = [f"row {key} of the queue should not exist" for key in found
                if key not in inserted or key in deleted]  # fmt: skip
    findings += [f"row {key} of the queue is lost" for key, known in inserted.items()
                 if known and key not in deleted and key not in found
                 and key[0] not in uncertain]  # fmt: skip
    findings += [
        f"row {row} of the truncated table should not exist"
        for row in server.query("SELECT client, n FROM ledger.truncated")
        if tuple(row) not in refilled
    ]
    return few(findings)


def judge_sequences(server: Server) -> list[str]:
    """No value was given twice; the tables with keys would have refused it."""
    findings = [
        f"sequence shared gave {row.value} {row.times} times"
        for row in server.query(
            "SELECT value, count(*) AS times FROM (SELECT value FROM ledger.no_key"
            " UNION ALL SELECT id FROM ledger.by_list) v GROUP BY 1 HAVING count(*) > 1"
        )
    ]
    for name in SEQUENCES:
        highest = {
            "by_serial_id_seq": "SELECT max(id) FROM ledger.by_serial",
            "by_identity_id_seq": "SELECT max(id) FROM ledger.by_identity",
            "shared": "SELECT greatest((SELECT max(value) FROM ledger.no_key),"
            " (SELECT max(id) FROM ledger.by_list))",
        }[name]
        row = server.query(f"SELECT last_value, ({highest}) AS used FROM ledger.{name}")[0]
        if row.used is not None and row.last_value < row.used:
            findings.append(f"sequence {name} is at {row.last_value}, but {row.used} is in use")
    return few(findings)


def settle(writing: Server, other: Server) -> None:
    """Returns once everything that is committed on one side is on the other one, too."""
    marker = writing.value("INSERT INTO ledger.marker VALUES (gen_random_uuid()) RETURNING id")
    other.wait_until(
        f"SELECT true FROM ledger.marker WHERE id = '{marker}'",
        f"everything of {writing.name}",
        limit=SETTLE_TIME,
    )


def judge_equality(writing: Server, other: Server, tables: list[str]) -> list[str]:
    """The same rows on both sides; called when nobody writes."""
    try:
        settle(writing, other)
    except (TimeoutError, psycopg.Error) as error:
        return [f"{other.name} does not follow {writing.name}: {error}"]
    findings = []
    for table in tables:
        # bags of rows as text, without an order; the sum of hashes is exact as numeric
        sql = f"""SELECT count(*), sum(hashtextextended(t::text, 1)::numeric) AS one,
            sum(hashtextextended(t::text, 2)::numeric) AS two FROM {table} t"""
        here, there = (tuple(server.query(sql)[0]) for server in (writing, other))
        if here != there:
            findings.append(
                f"{table} differs: {here[0]} rows on {writing.name}, {there[0]} on {other.name}"
            )
    return findings


def moves(events: Iterable[tuple[float, float, int]]) -> list[tuple[float, int]]:
    """How often writing has certainly moved: when, and to which side.

    Goes through the events by their ends.  A move is certain if an event on another side
    starts after one on the side that has been writing has ended.  Taking the earliest end
    of each run finds the most moves.
    """
    found: list[tuple[float, int]] = []
    side: int | None = None
    since = 0.0
    for start, end, where in sorted(events, key=lambda event: event[1]):
        if side is None:
            side, since = where, end
        elif where != side and start > since:
            side, since = where, end
            found.append((end, where))
    return found


def closed_since(probe: Probe) -> float:
    """When a probe was refused first."""
    return probe.refused[0][0] if probe.refused else float("inf")


def judge_moves(
    clients: Clients, probes: list[Probe], legitimate: list[int], initially_open: bool
) -> list[str]:
    """Writing has moved as often as a switch-over was completed, and each time where it should.

    A subscriber accepts writes.  If it was "initially_open", what its probe was allowed
    before the first refusal does not count.
    """
    if initially_open and legitimate and not probes[1].refused:
        return [f"{probes[1].server.name} was never closed"]
    since = closed_since(probes[1]) if initially_open else 0.0
    events = [
        (attempt.start, attempt.end, attempt.side)
        for attempt in clients.attempts()
        if attempt.outcome == "acknowledged"
    ]
    events += [(start, end, 0) for start, end in probes[0].accepted]
    events += [(start, end, 1) for start, end in probes[1].accepted if start >= since]
    events.sort(key=lambda event: event[1])
    if not events or events[0][2] != 0:
        return ["the side that should have accepted writes first did not"]
    went = moves(events)
    if [side for _, side in went] != legitimate:
        listed = ", ".join(f"to side {side} at {when:.3f}" for when, side in went[:20])
        return [
            f"writing moved {len(went)} times ({listed}), but should have moved"
            f" {len(legitimate)} times: both sides have accepted writes"
        ]
    return []


def judge_times(server: Server, attempts: list[Attempt], changes: list[float]) -> list[str]:
    """No row written on one side is older than the rows before the move, or younger after it.

    "changes" has, of each move, a moment of the clients' clock between its last success on one
    side and its first on the other; an attempt belongs to the period in which it ended.
    """
    written: dict[tuple[int, int], float] = {}
    for table in TABLES:
        for row in server.query(
            f"SELECT client, n, extract(epoch FROM wrote_at)::float8 AS at FROM ledger.{table}"
        ):
            written[row.client, row.n] = max(row.at, written.get((row.client, row.n), 0.0))
    latest: dict[int, float] = {}
    earliest: dict[int, float] = {}
    for attempt in attempts:
        at = written.get((attempt.client, attempt.n))
        if attempt.outcome != "acknowledged" or at is None:
            continue
        period = sum(change < attempt.end for change in changes)
        latest[period] = max(latest.get(period, at), at)
        earliest[period] = min(earliest.get(period, at), at)
    return few(
        [
            f"a row of period {period} was written {latest[period] - earliest[period + 1]:.4f} s"
            " after the other side had begun to accept writes"
            for period in latest
            if period + 1 in earliest and latest[period] >= earliest[period + 1]
        ]
    )


def judge_commits(old: Server, new: Server) -> list[str]:
    """With track_commit_timestamp: after one move, old commits are before new ones."""
    sql = """SELECT {which}(extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8)
        FROM ledger.by_uuid WHERE (pg_xact_commit_timestamp_origin(xmin)).roident = 0
        AND client >= 0"""
    if "on" not in (
        old.value("SHOW track_commit_timestamp"),
        new.value("SHOW track_commit_timestamp"),
    ):
        return []
    last, first = old.value(sql.format(which="max")), new.value(sql.format(which="min"))
    if last and first and last >= first:
        return [f"a commit on {old.name} is {last - first:.6f} s after the first on {new.name}"]
    return []


def pauses(attempts: Iterable[Attempt]) -> list[Pause]:
    """Each time that the side of acknowledged commits changed for good, how long none was."""
    ends = sorted((a.end, a.side) for a in attempts if a.outcome == "acknowledged")
    return [
        Pause(last, first) for (last, side), (first, other) in zip(ends, ends[1:]) if side != other
    ]


def judge(
    clients: Clients, probes: list[Probe], servers: list[Server], writing: int,
    legitimate: list[int], scale: int = 0, initially_open: bool = False,
) -> list[str]:  # fmt: skip
    """All findings; the clients must be held, and are still held at the end."""
    attempts = clients.attempts()
    here, there = servers[writing], servers[1 - writing]
    findings = few(list(clients.unexpected))
    for probe in probes:
        # before a subscriber is closed for the first time, its sequences are behind
        since = closed_since(probe) if initially_open and probe is probes[1] else 0.0
        findings += few([text for when, text in probe.unexpected if when >= since])
        if probe.failure:
            findings.append(f"{probe.name} failed: {probe.failure}")
    findings += judge_equality(here, there, compared_tables(scale))
    for server in (here, there):
        # rows that are on one side only are told once, above
        own = [*judge_rows(server, attempts, clients.kinds)]
        own += judge_counters(server, attempts)
        own += judge_queue(server, attempts)
        findings += [f"on {server.name}: {finding}" for finding in own]
        if server.crashed():
            findings.append(f"{server.name}: {server.crashed()[0]}")
    findings += judge_sequences(here)
    findings += judge_moves(clients, probes, legitimate, initially_open)
    moments = [(pause.last + pause.first) / 2 for pause in pauses(attempts)]
    findings += judge_times(here, attempts, moments)
    return findings


def wait_for_writes(clients: Clients, side: int | None = None, number: int = 50) -> None:
    """Waits until the clients have written some more, on this side."""
    before, problems = clients.acknowledged(side), clients.problems()
    wait_for(
        lambda: clients.acknowledged(side) >= before + number,
        lambda: (
            f"{number} acknowledged transactions on"
            f" {'either side' if side is None else f'side {side}'};"
            f" problems since: {dict(clients.problems() - problems)}"
        ),
    )
