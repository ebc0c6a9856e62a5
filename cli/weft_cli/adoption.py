"""Moves a subscription to a slot with another output plugin.

A slot cannot change its plugin.  Therefore the slot is copied: the server's function
pg_copy_logical_replication_slot() gives the copy the same position and another plugin.  The
subscription then continues with the copy.

Where the position is.  Three places know how far a subscription is:

- The subscriber's replication origin.  It is written by the commit of each transaction that is
  applied, so it is neither ahead of the tables nor behind them, not even after a crash.
- confirmed_flush_lsn of the slot: what the subscriber has reported as flushed.  It may lag behind
  the origin.  It may also be ahead of it, by WAL that contains nothing for the subscription.
- restart_lsn of the slot: from where WAL is read again, because of transactions that were open.

An apply worker asks for everything that was committed after its origin's position.  The publisher
begins there or at confirmed_flush_lsn, whichever is further (CreateDecodingContext() in the
server). Therefore a copy loses nothing and repeats nothing if its confirmed_flush_lsn is not
ahead of what the subscriber has reported, and the WAL from its restart_lsn on exists.  The server
guarantees both: it reads the positions of the old slot after the new one has begun to hold WAL
back.

An older confirmed_flush_lsn would nearly do as well.  But WAL that contained nothing for the
subscription then is decoded again, and may contain something now, if tables were added meanwhile.
Therefore the slot is copied while nobody uses it, so that the positions are equal.

What a slot has besides its position:

- Snapshots for decoding, which the server stores by position and not by slot, and keeps as long
  as some slot has that restart_lsn.  The copy begins with the same one.
- two_phase and the position since which it is on.  They are not copied: a transaction that was
  prepared before, and sent, would be sent again.  Refused.
- failover.  It is not copied: a standby that has synchronized a slot of the same name would not
  follow it backward.  The name is new here, so the flag can be set afterwards, before the
  subscription uses the slot (ALTER SUBSCRIPTION ... SET (failover), which sets it on both sides).
- Nothing of the plugin.  pgoutput keeps what it has sent about tables in memory only, per
  connection.  Weft's plugin takes the same options and sends the same, but in batches if the
  leader asks for them; the leader looks at the slot's plugin each time that it connects.  So any
  worker, Weft's or the server's own, can continue with either slot.
- Tables that are being synchronized have slots of their own, but are handed over at a position of
  the main one.  Refused until all are ready.

The steps.  S is the subscription, "old" and "new" are the slots.

  state of S          slots       next step
  ------------------  ----------  ------------------------------------------------------------
  enabled, old        old, new    clean: drop new.  It is left over, and its position is stale.
  enabled, old        old         stop: copy old as a temporary slot, which shows that it can
                                  be done, and drop that.  Then, in one transaction:
                                  disable S, and set its slot_name to new.
  disabled, new       old         wait: until the publisher has noticed that nobody uses old.
                                  copy: copy old to new.
  disabled, new       old, new    failover: if S has it.
                                  start: enable S.
  enabled, new        old, new    settle: wait until the publisher streams from new.
                                  standby: if S has failover, wait until standbys have new.
                                  drop: drop old.
  enabled, new        new         done.
  enabled, new        old         stop again.  The publisher was lost, and a standby that has not
                                  synchronized new has taken over.

The state is all that is known of an adoption: nothing is stored.  Each step looks at both servers
anew, so a kill of this program, of either server or of a connection at any moment leaves a state
of this table, and the next call continues there.  A step is one statement, or one transaction on
one server; the server completes it or does not begin it.  (A slot being copied becomes persistent
at the end; before that, an error or a crash drops it.)

Whose disabling was it?  S is disabled and has the name of a new slot in the same transaction.  A
subscription that is disabled and still has its old slot was disabled by somebody else: refused.
If S has the new slot, is disabled, and new is further than old, then it has already been in use,
and somebody has disabled it since (a user, or disable_on_error): refused as well.

Which slot was the old one?  The new name is made from the old one, the plugin, and a hash of the
old name, the subscription's OID and the subscriber's system identifier.  The old slot is the one
from whose name the new name follows.  Therefore a slot of another subscription, or of another
subscriber, is never taken for it, whatever its name is.

Errors.  If a step between "stop" and "start" fails, for example because the publisher has just
been reconfigured, then S would remain disabled.  Therefore new is dropped, and S gets its old
slot back and is enabled, in one transaction.  New goes first: S with new, disabled, without that
slot, is in the table.  The same happens if the publisher does not stream from new in time and has
never done so, and if a later call finds S disabled by an earlier one, and an obstacle.

Durability.  Old must not be dropped before the subscriber has stored that it uses new.  Therefore
these transactions are flushed, even if the role has synchronous_commit = off.

Failover.  Until a standby of the publisher has synchronized new, it has old, and a failover needs
that. Therefore old is dropped only when the standbys that the user names have new.

Concurrency.  An advisory lock on the subscriber excludes a second adoption of the subscription.
It belongs to the session, and is released when that ends.  A statement on the publisher may
outlive the program that has sent it.  Then a slot exists, or does not, contrary to what was just
seen; the server refuses the step, and the next look decides.
"""

import time
from collections.abc import Callable

from psycopg import sql

from weft_cli.adoption_state import (
    STOPPED_STEPS,
    WEFT,
    Pair,
    Slot,
    State,
    Step,
    find_pair,
    next_step,
    settled,
    slots_of,
)
from weft_cli.errors import Refused, Unreachable, WeftError
from weft_cli.publisher_plugin import plugin_obstacle
from weft_cli.quoting import word
from weft_cli.server import Server

# Seconds between two looks at a server.
POLL = 0.1
# Seconds after which a statement of an earlier attempt, or its session, has ended.
END_OF_STATEMENT = 5.0
# Seconds between two records of running transactions that we ask for.
RECORD_INTERVAL = 1.0
# How often the same step is tried, if others change what it needs.
MAX_ATTEMPTS = 5

DUPLICATE_OBJECT = "42710"
UNDEFINED_OBJECT = "42704"
OBJECT_IN_USE = "55006"


class Adoption:
    """One subscription, from here on."""

    def __init__(
        self,
        subscriber: Server,
        publisher: Server,
        subscription: str,
        plugin: str,
        limit: float,
        standbys: list[Server],
    ):
        self.subscriber = subscriber
        self.publisher = publisher
        self.subscription = subscription
        self.plugin = plugin
        self.limit = limit
        self.standbys = standbys
        # of the last look
        self.subid: int | None = None

    # What is the case

    def look(self) -> State:
        rows = self.subscriber.rows(
            "SELECT s.oid::bigint AS subid, s.subenabled, s.subslotname, s.subfailover,"
            " s.subtwophasestate::text, (SELECT count(*) FROM pg_subscription_rel r"
            "  JOIN pg_class t ON t.oid = r.srrelid AND t.relkind <> 'S'"
            "  WHERE r.srsubid = s.oid AND r.srsubstate <> 'r') AS unready,"
            " (SELECT system_identifier FROM pg_control_system()) AS system_identifier"
            " FROM pg_subscription s JOIN pg_database d ON d.oid = s.subdbid"
            " WHERE d.datname = current_database() AND s.subname = %s",
            self.subscription,
        )
        if not rows:
            raise Refused(
                f'there is no subscription "{self.subscription}" in {self.subscriber.name}',
                self._other_name(),
            )
        row = rows[0]
        self.subid = row["subid"]
        in_use, reason = self._plugin_in_use()
        return State(
            subid=row["subid"],
            subscription=self.subscription,
            enabled=row["subenabled"],
            slot_name=row["subslotname"],
            failover=row["subfailover"],
            two_phase=row["subtwophasestate"] != "d",
            unready_tables=row["unready"],
            system_identifier=row["system_identifier"],
            plugin_in_use=in_use,
            native_reason=reason,
            slots=slots_of(self.publisher),
        )

    def _other_name(self) -> str:
        """A hint how to continue if the subscription has been renamed."""
        if self.subid is None:
            return "If it was renamed, run this with its new name: that continues what was begun."
        renamed = self.subscriber.value(
            "SELECT subname FROM pg_subscription WHERE oid = %s", self.subid
        )
        if renamed is None:
            return ""
        plugin = "" if self.plugin == WEFT else f" --plugin {self.plugin}"
        return f'It is called "{renamed}" now. To continue: weft adopt{plugin} {word(renamed)}'

    def _plugin_in_use(self) -> tuple[str | None, str | None]:
        if self.subscriber.weft_extension is None:
            return None, "the database does not have the extension"
        for row in self.subscriber.rows(
            "SELECT output_plugin, native_reason FROM weft.stat_subscription WHERE subname = %s"
            " AND subid IN (SELECT s.oid FROM pg_subscription s JOIN pg_database d"
            "  ON d.oid = s.subdbid WHERE d.datname = current_database())",
            self.subscription,
        ):
            return row["output_plugin"], row["native_reason"]
        return None, None

    def next_step(self, state: State) -> Step | None:
        step = next_step(state, self.plugin, False)
        if step is Step.STANDBY and self.standbys and self._standbys_have(state):
            return Step.DROP
        return step

    def _standbys_have(self, state: State) -> bool:
        new = find_pair(state, self.plugin).new_name
        return all(
            standby.value(
                "SELECT synced AND NOT temporary AND invalidation_reason IS NULL"
                " FROM pg_replication_slots WHERE slot_name = %s",
                new,
            )
            for standby in self.standbys
        )

    # What is done

    def perform(self, step: Step, state: State) -> None:
        pair = find_pair(state, self.plugin)
        try:
            match step:
                case Step.CLEAN:
                    self._drop(pair.new_name)
                case Step.STOP:
                    self._stop(pair)
                case Step.WAIT:
                    self._wait_until_unused(pair)
                case Step.COPY:
                    self._copy(pair, temporary=False)
                case Step.FAILOVER:
                    self._alter("SET (failover = true)")
                case Step.START:
                    self._alter("ENABLE")
                case Step.SETTLE:
                    self._wait_until_settled(pair)
                case Step.STANDBY:
                    self._wait_for_standbys(pair)
                case Step.DROP:
                    self._drop_old(pair)
        except Refused as error:
            # A statement of an earlier attempt has been completed since we looked.
            if error.sqlstate not in (DUPLICATE_OBJECT, UNDEFINED_OBJECT, OBJECT_IN_USE):
                raise
            if not self._becomes_another_step(step):
                raise

    def _becomes_another_step(self, step: Step) -> bool:
        deadline = time.monotonic() + min(self.limit, END_OF_STATEMENT)
        while next_step(self.look(), self.plugin, False) is step:
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL)
        return True

    def lock(self) -> None:
        """Excludes another adoption of the subscription, until this connection ends."""
        key = (int.from_bytes(b"weft") << 32) | self.look().subid
        self._wait_for(
            lambda: bool(self.subscriber.value("SELECT pg_try_advisory_lock(%s::bigint)", key)),
            "another session that adopts the subscription",
        )
        self.subscriber.execute(
            "SELECT set_config('synchronous_commit', 'local', false)"
            " WHERE current_setting('synchronous_commit') = 'off'"
        )

    def _alter(self, *actions: str) -> None:
        """One transaction, because the server takes the statements as one message."""
        name = sql.Identifier(self.subscription).as_string(self.subscriber.connection)
        self.subscriber.execute("; ".join(f"ALTER SUBSCRIPTION {name} {each}" for each in actions))

    def _set_slot(self, slot: str) -> str:
        return f"SET (slot_name = {sql.Literal(slot).as_string(self.subscriber.connection)})"

    def _stop(self, pair: Pair) -> None:
        assert pair.old is not None
        if not pair.changed and not self._cannot_stream(pair.old):
            # Is this the publisher at all?
            self._wait_for(
                lambda: self._slot(pair.old_name).active,
                f'the publisher to stream from slot "{pair.old_name}" to this subscriber',
                "See the subscriber's log. If the publisher is another server, name it with"
                " --publisher.",
            )
        self._copy(pair, temporary=True)
        self._drop(pair.new_name)
        self._alter("DISABLE", self._set_slot(pair.new_name))

    def _cannot_stream(self, slot: Slot) -> bool:
        """A server that has lost Weft cannot use its slots, but can copy them to pgoutput."""
        return slot.plugin == WEFT and plugin_obstacle(self.publisher) is not None

    def _copy(self, pair: Pair, temporary: bool) -> None:
        self.publisher.execute(
            "SELECT pg_copy_logical_replication_slot(%s, %s, %s, %s)",
            pair.old_name,
            pair.new_name,
            temporary,
            self.plugin,
        )

    def _drop(self, slot: str) -> None:
        self.publisher.execute("SELECT pg_drop_replication_slot(%s)", slot)

    def _drop_old(self, pair: Pair) -> None:
        old, new = pair.old, pair.new
        assert old is not None and new is not None
        users = self.subscriber.rows(
            "SELECT subname FROM pg_subscription WHERE subslotname = %s", old.name
        )
        if users or old.plugin == self.plugin or not old.here or old.confirmed > new.confirmed:
            raise Refused(
                f'slot "{old.name}" does not look like the old slot of subscription'
                f' "{self.subscription}", and is kept',
                "Find out who uses it; if nobody does, drop it on the publisher.",
            )
        self._wait_until_unused(pair)
        self._drop(old.name)

    def _slot(self, name: str | None) -> Slot:
        slot = slots_of(self.publisher).get(name or "")
        if slot is None:
            raise Refused(f'slot "{name}" has vanished from the publisher')
        return slot

    def _wait_until_unused(self, pair: Pair) -> None:
        self._wait_for(
            lambda: not self._slot(pair.old_name).active,
            f'the publisher to stop using slot "{pair.old_name}"',
            "It ends when it notices that the connection is closed (wal_sender_timeout). Then run"
            " this again.",
        )

    def _wait_until_settled(self, pair: Pair) -> None:
        state = self.look()

        def streams() -> bool:
            nonlocal state
            state = self.look()
            if not state.enabled:
                raise Refused(
                    f'subscription "{self.subscription}" has been disabled, perhaps because of an'
                    " error (disable_on_error)",
                    "See the subscriber's log; enable it, and run this again.",
                )
            new = state.slots.get(pair.new_name)
            return new is not None and settled(state, new, self.plugin)

        self._wait_for(
            streams,
            f'the publisher to stream from slot "{pair.new_name}"',
            "See the logs of both servers. Then run this again.",
        )

    def _wait_for_standbys(self, pair: Pair) -> None:
        """A standby takes a slot over from the third record of running transactions on.

        The publisher writes one every 15 seconds.  If we may, we ask for more of them.
        """
        may_ask = self.publisher.value(
            "SELECT has_function_privilege('pg_log_standby_snapshot()', 'EXECUTE')"
        )
        next_record = 0.0

        def have() -> bool:
            nonlocal next_record
            if self._standbys_have(self.look()):
                return True
            if may_ask and time.monotonic() >= next_record:
                self.publisher.execute("SELECT pg_log_standby_snapshot()")
                next_record = time.monotonic() + RECORD_INTERVAL
            return False

        self._wait_for(have, f'a standby to synchronize slot "{pair.new_name}"')

    def _wait_for(self, condition: Callable[[], bool], what: str, hint: str = "") -> None:
        deadline = time.monotonic() + self.limit
        while not condition():
            if time.monotonic() > deadline:
                raise Unreachable(f"timed out waiting for {what}", hint)
            time.sleep(POLL)

    # The way back

    def go_back(self, enabled_only: bool) -> bool:
        """Gives the subscription its old slot back if the new one has never been used.

        After "start", only if the subscription is still enabled: otherwise somebody else has
        disabled it.
        """
        state = self.look()
        pair = find_pair(state, self.plugin)
        old, new = pair.old, pair.new
        if not pair.changed or old is None or (enabled_only and not state.enabled):
            return False
        if new is not None and (new.active or new.confirmed > old.confirmed):
            return False
        if state.enabled:
            self._alter("DISABLE")
        if new is not None:
            self._drop(new.name)
        self._alter(self._set_slot(old.name), "ENABLE")
        return True


def run(
    adoption: Adoption,
    begin: Callable[[Step], None],
    end: Callable[[Step, float], None],
) -> bool:
    """Does everything that is left.

    Returns false if the old slot had to be kept, because nobody knows whether the standbys have the
    new one.
    """
    step: Step | None = None
    attempts: dict[Step, int] = {}
    try:
        while True:
            state = adoption.look()
            following = adoption.next_step(state)
            if following is None:
                return True
            if following is Step.STANDBY and not adoption.standbys:
                return False
            step = following
            attempts[step] = attempts.get(step, 0) + 1
            if attempts[step] > MAX_ATTEMPTS:
                raise Refused(
                    f'step "{step.value}" does not succeed because the servers keep changing'
                )
            started = time.monotonic()
            begin(step)
            adoption.perform(step, state)
            end(step, time.monotonic() - started)
    except WeftError as error:
        if step in (Step.STOP, Step.SETTLE, *STOPPED_STEPS):
            _go_back_after(adoption, error, step)
        raise


def _go_back_after(adoption: Adoption, error: WeftError, step: Step) -> None:
    """Adds to the error's hint in which state the subscription is now."""
    again = "The subscription may be disabled now: run this again to continue."
    try:
        if adoption.go_back(enabled_only=step is Step.SETTLE):
            again = "The subscription has its old slot again, and is enabled."
        elif step is Step.SETTLE or adoption.look().enabled:
            again = ""
    except WeftError as further:
        # The hint says already how to continue with the new name.
        if further.hint and further.hint == error.hint:
            again = "The subscription may be disabled until then."
        else:
            again = f"{again} It could not be given its old slot back: {further}"
    error.hint = f"{error.hint} {again}".strip()
