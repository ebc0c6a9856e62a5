#!/usr/bin/env python
"""A slow line between two network interfaces, for kernels without netem.

relay.py ONE OTHER RTT_SECONDS BYTES_PER_SECOND passes Ethernet frames between two interfaces of
its network namespace, each direction on a line of its own, until its standard input is closed.
It needs nothing but Python and the right to open packet sockets.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
from collections import deque
from dataclasses import dataclass, field

# Frames that wait for their turn on one line; further ones are lost, as with netem's default.
QUEUE_LIMIT = 1000
ALL_PROTOCOLS = 0x0003
SENT_BY_US = 4
LONGEST_FRAME = 65_600
# Frames read at once from one side, before the other gets its turn.
BURST = 64


@dataclass
class Line:
    """One direction: frames are sent one after the other, and then travel."""

    delay: float
    bytes_per_second: float
    limit: int = QUEUE_LIMIT
    # When the frame sent last has left, and its followers may.
    free_at: float = 0.0
    lost: int = 0
    # Frames with the time at which they arrive, in ascending order.
    travelling: deque[tuple[float, bytes]] = field(default_factory=deque)
    # Times at which frames leave, of those that may not have left yet.
    leaving: deque[float] = field(default_factory=deque)

    def put(self, now: float, frame: bytes) -> None:
        while self.leaving and self.leaving[0] <= now:
            self.leaving.popleft()
        if len(self.leaving) >= self.limit:
            self.lost += 1
            return
        begin = max(now, self.free_at)
        self.free_at = begin
        if self.bytes_per_second:
            self.free_at += len(frame) / self.bytes_per_second
        self.leaving.append(self.free_at)
        self.travelling.append((self.free_at + self.delay, frame))

    def arrived(self, now: float) -> list[bytes]:
        frames = []
        while self.travelling and self.travelling[0][0] <= now:
            frames.append(self.travelling.popleft()[1])
        return frames

    def next_arrival(self) -> float | None:
        return self.travelling[0][0] if self.travelling else None


def packet_socket(interface: str) -> socket.socket:
    opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_000_000)
    opened.bind((interface, 0))
    opened.setblocking(False)
    return opened


def read_frames(source: socket.socket, line: Line) -> None:
    for _ in range(BURST):
        try:
            frame, address = source.recvfrom(LONGEST_FRAME)
        except BlockingIOError:
            return
        if address[2] != SENT_BY_US:
            line.put(time.monotonic(), frame)


def send_frames(target: socket.socket, line: Line) -> None:
    for frame in line.arrived(time.monotonic()):
        try:
            target.send(frame)
        except OSError:
            # As on any line, whoever sent it will notice.
            line.lost += 1


def relay(one: str, other: str, rtt: float, bytes_per_second: float) -> None:
    sides = packet_socket(one), packet_socket(other)
    lines = tuple(Line(rtt / 2, bytes_per_second) for _ in sides)
    while True:
        arrivals = [at for line in lines if (at := line.next_arrival()) is not None]
        wait = max(min(arrivals) - time.monotonic(), 0) if arrivals else None
        ready, _, _ = select.select([*sides, sys.stdin], [], [], wait)
        if sys.stdin in ready and not os.read(sys.stdin.fileno(), 1):
            return
        for source, target, line in zip(sides, sides[::-1], lines):
            if source in ready:
                read_frames(source, line)
            send_frames(target, line)


if __name__ == "__main__":
    relay(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]))
