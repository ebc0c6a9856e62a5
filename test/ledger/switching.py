"""weft.switch_over and weft.switch_back, called by a test that may kill the caller or a server.

Both are called on side 1, the server with Weft.
"""

import itertools
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psycopg
from servers import Server, wait_for
from trial import Trial
from verdict import wait_for_writes

SUBSCRIPTION = "forward"

STEPS = (
    "plan", "arm_target", "fence_target", "arm_source", "publish", "create_slot", "subscribe",
    "catch_up", "sequences_before", "fence_source", "drain", "sequences", "verify", "position",
    "final", "stop", "open", "remove", "follow", "disarm",
)  # fmt: skip


def subscribe(servers: list[Server], copy: bool = False) -> None:
    """The first subscription, from side 0 to side 1, with both sides equal."""
    old, new = servers
    new.query("CREATE EXTENSION weft")
    old.query("CREATE PUBLICATION p FOR ALL TABLES")
    new.query(
        f"CREATE SUBSCRIPTION {SUBSCRIPTION} CONNECTION '{old.linked_conninfo}' PUBLICATION p"
        f" WITH (copy_data = {copy})"
    )
    new.query(f"SELECT weft.wait_for_subscription('{SUBSCRIPTION}', '60 s')")


def call_text(servers: list[Server], back: bool, options: str = "") -> str:
    if back:
        return f"CALL weft.switch_back('{SUBSCRIPTION}'{options})"
    return f"CALL weft.switch_over('{SUBSCRIPTION}', '{servers[1].linked_conninfo}'{options})"


class Call(threading.Thread):
    """A session that calls one of the procedures."""

    def __init__(self, servers: list[Server], back: bool, options: str = ""):
        super().__init__(daemon=True, name="caller")
        self.sql = call_text(servers, back, options)
        self.connection = servers[1].connect()
        self.pid = self.connection.info.backend_pid
        self.error: psycopg.Error | None = None
        self.notices: list[str] = []
        self.connection.add_notice_handler(lambda d: self.notices.append(d.message_primary or ""))
        self.started = time.monotonic()

    def run(self) -> None:
        try:
            self.connection.execute(self.sql)
        except psycopg.Error as error:
            self.error = error
        finally:
            with suppress(psycopg.Error):
                self.connection.close()

    def finish(self, limit: float = 120) -> psycopg.Error | None:
        self.join(limit)
        if self.is_alive():
            raise TimeoutError(f"{self.sql} has not ended after {limit} s")
        return self.error


class Progress:
    """What weft.switch_over_progress shows, read by a session of its own."""

    def __init__(self, server: Server):
        self.server = server
        self.since = server.value("SELECT clock_timestamp()")

    def rows(self) -> list[Any]:
        """The steps since this was created.  Waits until the server answers: it may restart."""
        answers: list[list[Any]] = []

        def answered() -> bool:
            with suppress(psycopg.OperationalError):
                answers.append(
                    self.server.query(
                        "SELECT position, step, started_at, ended_at, result"
                        " FROM weft.switch_over_progress WHERE started_at >= %s"
                        " ORDER BY started_at",
                        self.since,
                    )
                )
            return bool(answers)

        wait_for(answered, f"{self.server.name} to answer")
        return answers[0]

    def came_to(self, step: str) -> bool:
        return any(row.step == step for row in self.rows())

    def described(self) -> str:
        return "\n".join(
            f"{row.position:3} {row.step:16} {row.started_at:%H:%M:%S.%f}"
            f" {(row.ended_at - row.started_at).total_seconds() if row.ended_at else -1:7.3f} s"
            f" {row.result or ''}"
            for row in self.rows()
        )


class Hold:
    """Stops a call right before a step, or at its end, before what it has done is committed.

    A trigger on weft.switch_over_progress takes a lock that belongs to the step; a session
    of the test holds the lock of one of them.
    """

    CLASS = 471100

    @classmethod
    def install(cls, server: Server) -> None:
        server.query(
            f"""
            CREATE SCHEMA hold;
            CREATE FUNCTION hold.step() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                PERFORM pg_catalog.pg_advisory_xact_lock_shared({cls.CLASS},
                    pg_catalog.hashtext(NEW.step || TG_OP));
                RETURN NEW;
            END $$;
            CREATE TRIGGER hold BEFORE INSERT OR UPDATE ON weft.switch_over_progress
                FOR EACH ROW EXECUTE FUNCTION hold.step();
            ALTER TABLE weft.switch_over_progress ENABLE ALWAYS TRIGGER hold"""
        )

    def __init__(self, server: Server, step: str, at_end: bool):
        self.server = server
        self.connection = server.connect()
        self.connection.execute(
            f"SELECT pg_advisory_lock({self.CLASS}, hashtext(%s))",
            [step + ("UPDATE" if at_end else "INSERT")],
        )

    def wait(self, call: "Call", limit: float = 90) -> bool:
        """Whether the call was stopped there, before it ended."""
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            alive = call.is_alive()
            if self.server.value(
                "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
                f" AND classid = {self.CLASS}"
            ):
                return True
            if not alive:
                return False
            time.sleep(0.01)
        raise TimeoutError("the call neither comes to the step nor ends")

    def release(self) -> None:
        self.connection.close()


# What a call says if an earlier one, whose client was gone, has completed what it asks for.
ALREADY_DONE = {False: "has already been switched over", True: "has not been switched over"}


def drop_caller(call: Call, servers: list[Server], back: bool) -> None:
    """The client is gone; its backend notices when it next looks."""
    with suppress(OSError):
        duplicate = socket.socket(fileno=os.dup(call.connection.fileno()))
        duplicate.shutdown(socket.SHUT_RDWR)
        duplicate.close()


def cancel_caller(call: Call, servers: list[Server], back: bool) -> None:
    servers[1].query(f"SELECT pg_cancel_backend({call.pid})")


def terminate_caller(call: Call, servers: list[Server], back: bool) -> None:
    servers[1].query(f"SELECT pg_terminate_backend({call.pid})")


def kill_caller(call: Call, servers: list[Server], back: bool) -> None:
    """kill -9: the whole server starts anew."""
    with suppress(ProcessLookupError):
        os.kill(call.pid, signal.SIGKILL)


def freeze_caller(call: Call, servers: list[Server], back: bool) -> None:
    """For long enough, sometimes, that the source accepts writes before it goes on."""
    with suppress(ProcessLookupError):
        os.kill(call.pid, signal.SIGSTOP)
    time.sleep(random.choice((0.5, 8.0)))
    with suppress(ProcessLookupError):
        os.kill(call.pid, signal.SIGCONT)


def crash(side_of: Callable[[bool], int], with_children: bool) -> Callable[..., None]:
    def run(call: Call, servers: list[Server], back: bool) -> None:
        server = servers[side_of(back)]
        server.kill(with_children)
        time.sleep(random.choice((0, 0.5, 1.5)))
        server.start()

    return run


def cut_link(call: Call, servers: list[Server], back: bool) -> None:
    for server in servers:
        server.link.close()
    time.sleep(random.choice((0.05, 1.0, 3.0)))
    for server in servers:
        server.link.open()


def stall_link(call: Call, servers: list[Server], back: bool) -> None:
    """Nothing gets through for a while, then what was under way does."""
    for server in servers:
        server.link.stall()
    time.sleep(random.choice((0.5, 2.0)))
    for server in servers:
        server.link.flow()


def stall_and_cut_link(call: Call, servers: list[Server], back: bool) -> None:
    for server in servers:
        server.link.stall()
    time.sleep(random.choice((0.2, 1.0)))
    cut_link(call, servers, back)


FAULTS: dict[str, Callable[[Call, list[Server], bool], None]] = {
    "drop the caller": drop_caller,
    "cancel the caller": cancel_caller,
    "terminate the caller": terminate_caller,
    "kill the caller": kill_caller,
    "freeze the caller": freeze_caller,
    "kill the source": crash(lambda back: 1 if back else 0, True),
    "kill the target": crash(lambda back: 0 if back else 1, True),
    "kill the source's postmaster": crash(lambda back: 1 if back else 0, False),
    "kill the target's postmaster": crash(lambda back: 0 if back else 1, False),
    "cut the link": cut_link,
    "stall the link": stall_link,
    "stall and cut the link": stall_and_cut_link,
}


def call_until_done(
    servers: list[Server], back: bool, options: str = "", limit: float = 120
) -> int:
    """Calls as an operator would after a failure, until it succeeds; returns how often."""
    calls = 0

    def succeeded() -> bool:
        nonlocal calls
        try:
            call = Call(servers, back, options)
        except psycopg.OperationalError:
            time.sleep(0.1)
            return False
        calls += 1
        call.start()
        error = call.finish()
        if error is None:
            return True
        errors.append(str(error).splitlines()[0])
        time.sleep(0.2)
        return ALREADY_DONE[back] in errors[-1]

    errors: list[str] = []
    try:
        wait_for(succeeded, "a call that succeeds", limit)
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {errors[-3:]}") from None
    return calls


def switch(trial: Trial, back: bool, options: str = "") -> None:
    """Over or back, without a fault.  On a busy machine, a pause may take long."""
    progress = Progress(trial.servers[1])
    call = Call(trial.servers, back, options or ", max_pause => '100 s'")
    call.start()
    error = call.finish()
    if error is not None:
        raise AssertionError(f"{error}\n{progress.described()}")
    trial.moved.append(0 if back else 1)


@dataclass(frozen=True)
class Fault:
    """What happens when a call comes to a step, or to its end."""

    step: str
    at_end: bool
    name: str

    def __str__(self) -> str:
        return f"{'end of ' if self.at_end else ''}{self.step}: {self.name}"

    @classmethod
    def parse(cls, text: str) -> "Fault":
        step, name = text.split(": ")
        fault = cls(step.removeprefix("end of "), step.startswith("end of "), name)
        assert fault.step in STEPS and fault.name in FAULTS, f"no fault: {text}"
        return fault


def chosen_faults(which: str) -> list[Fault]:
    """Some faults, as many as "which" says; "all", each one both ways; or these: "step: name, …".

    "all 1/3" is the first third of all.
    """
    if ":" in which:
        return [Fault.parse(text) for text in which.split(", ")]
    seed = int(os.environ.get("WEFT_LEDGER_SEED", time.time_ns() % 1_000_000))
    print("WEFT_LEDGER_SEED:", seed)
    random.seed(seed)
    pairs = list(itertools.product(STEPS, FAULTS))
    random.shuffle(pairs)
    if which.startswith("all"):
        # the number of pairs is even, so each one comes once in each direction
        pairs += pairs[1:] + pairs[:1]
    faults = [Fault(step, random.random() < 0.5, name) for step, name in pairs]
    if not which.startswith("all"):
        return faults[: int(which)]
    part, parts = (int(n) for n in (which.removeprefix("all").strip() or "1/1").split("/"))
    return faults[len(faults) * (part - 1) // parts : len(faults) * part // parts]


def one_fault(trial: Trial, fault: Fault) -> None:
    """One call with a fault before a step or at its end, and then as many as it takes."""
    servers = trial.servers
    source = trial.writing
    back = source == 1
    progress = Progress(servers[1])
    hold = Hold(servers[1], fault.step, fault.at_end)
    call = Call(servers, back, ", max_pause => '2 s'" if "freeze" in fault.name else "")
    call.start()
    reached = hold.wait(call)
    if reached:
        culprit = threading.Thread(target=FAULTS[fault.name], args=[call, servers, back])
        culprit.start()
        # What acts on the link or a server has begun when the call goes on.
        culprit.join(0.03)
        hold.release()
        culprit.join()
    hold.release()
    error = call.finish()
    first_line = str(error).splitlines()[0] if error else "no error"
    print(
        f"{'back' if back else 'over'}, {fault}{'' if reached else ' (not a step)'}: {first_line}",
        flush=True,
    )
    if error and not progress.came_to("final"):
        # It is undone without any help; or completed, by a process whose client is gone.
        wait_for_writes(trial.clients, None, 20)
    call_until_done(servers, back)
    trial.moved.append(1 - source)
    trial.wait_for_writes(20, side=trial.writing)
    if wrong := trial.wrong_sides():
        raise AssertionError(f"{wrong[0]}\n{progress.described()}")
