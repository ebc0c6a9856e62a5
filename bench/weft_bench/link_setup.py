#!/usr/bin/env python
"""Makes the slow line between two network namespaces, and keeps it until its standard input is
closed; started by link.py in a user namespace, where it may do that without being root.

link_setup.py RTT_SECONDS BITS_PER_SECOND prints one line of JSON: the processes that hold the
namespaces of publisher and subscriber, and what emulates the line; or an "error".  All of it ends
with the processes in the namespaces, so nothing has to be removed, whatever happens.
"""

from __future__ import annotations

import array
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path

PATH = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin"
# Addresses for documentation: nobody else has them, and no route leads out of the namespaces.
ADDRESSES = {"publisher": "192.0.2.1", "subscriber": "192.0.2.2"}
PREFIX_LENGTH = 30
SIOCETHTOOL = 0x8946
# Checksums and segments are left to the card by default, but there is none: the relay would pass
# frames without checksums, and longer ones than any line carries.
SET_TRANSMIT_CHECKSUMS, SET_TCP_SEGMENTATION, SET_GENERIC_SEGMENTATION = 0x17, 0x1F, 0x24


class LinkError(Exception):
    pass


def run(*command: str) -> None:
    program = shutil.which(command[0], path=PATH)
    if program is None:
        raise LinkError(f"there is no program {command[0]}: apt-get install iproute2")
    done = subprocess.run([program, *command[1:]], capture_output=True, text=True)
    if done.returncode != 0:
        raise LinkError(f"{' '.join(command)}: {done.stderr.strip()}")


def within(holder: int, *command: str) -> None:
    run("nsenter", f"--net=/proc/{holder}/ns/net", *command)


def hold_namespace() -> subprocess.Popen:
    """A process in a new network namespace that ends when this one's standard input is closed."""
    holder = subprocess.Popen(
        ["unshare", "--net", "sh", "-c", "echo; exec cat >/dev/null"], stdout=subprocess.PIPE
    )
    assert holder.stdout is not None
    if not holder.stdout.read(1):
        raise LinkError("no network namespace can be created")
    return holder


def switch_off_offloads(interface: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for what in (
            SET_TRANSMIT_CHECKSUMS, SET_TCP_SEGMENTATION, SET_GENERIC_SEGMENTATION,
        ):  # fmt: skip
            value = array.array("B", struct.pack("II", what, 0))
            request = struct.pack("16sP", interface.encode(), value.buffer_info()[0])
            fcntl.ioctl(control.fileno(), SIOCETHTOOL, request)


def add_cable(one: str, other: str) -> None:
    run("ip", "link", "add", "name", one, "type", "veth", "peer", "name", other)


def connect(side: str, holder: int, interface: str) -> None:
    """Moves the interface into the holder's namespace, and gives it its address."""
    run("ip", "link", "set", interface, "netns", str(holder))
    within(holder, "ip", "link", "set", "lo", "up")
    within(holder, "ip", "addr", "add", f"{ADDRESSES[side]}/{PREFIX_LENGTH}", "dev", interface)
    within(holder, "ip", "link", "set", interface, "up")


def netem_arguments(rtt: float, rate: float) -> list[str]:
    arguments = ["netem", "delay", f"{rtt / 2 * 1e6:.0f}us"]
    return [*arguments, "rate", f"{rate:.0f}bit"] if rate else arguments


def connect_by_netem(holders: dict[str, int], rtt: float, rate: float) -> bool:
    """One cable with netem at both ends.  Returns false if the kernel does not have it."""
    add_cable("publisher", "subscriber")
    if rtt or rate:
        try:
            run("tc", "qdisc", "add", "dev", "publisher", "root", *netem_arguments(rtt, rate))
        except LinkError as error:
            run("ip", "link", "delete", "publisher")
            if "qdisc kind is unknown" in str(error):
                return False
            raise
    for side, holder in holders.items():
        connect(side, holder, side)
        if rtt or rate:
            # Moving an interface may reset its queue.
            within(holder, "tc", "qdisc", "replace", "dev", side, "root",
                   *netem_arguments(rtt, rate))  # fmt: skip
    return True


def connect_by_relay(holders: dict[str, int], rtt: float, rate: float) -> subprocess.Popen:
    """Two cables, between whose inner ends relay.py passes frames."""
    for side, holder in holders.items():
        add_cable(side, f"to_{side}")
        for interface in (side, f"to_{side}"):
            switch_off_offloads(interface)
        connect(side, holder, side)
        run("ip", "link", "set", f"to_{side}", "up")
    program = Path(__file__).with_name("relay.py")
    return subprocess.Popen(
        [sys.executable, str(program), "to_publisher", "to_subscriber", str(rtt), str(rate / 8)]
    )


def main() -> None:
    rtt, rate = float(sys.argv[1]), float(sys.argv[2])
    about: dict[str, object] = {}
    children: list[subprocess.Popen] = []
    try:
        children += [hold_namespace() for _ in ADDRESSES]
        holders = {side: child.pid for side, child in zip(ADDRESSES, children)}
        about = {"holders": holders, "addresses": ADDRESSES, "emulation": "netem"}
        if not connect_by_netem(holders, rtt, rate):
            children.append(connect_by_relay(holders, rtt, rate))
            about["emulation"] = "relay"
    except (LinkError, OSError) as error:
        about = {"error": str(error)}
    print(json.dumps(about), flush=True)
    # The processes in the other namespaces read the same pipe, so they end at the same time.
    while os.read(0, 1):
        pass
    for child in children:
        child.wait()


if __name__ == "__main__":
    main()
