"""A bad network of two ends, in user space: two network namespaces, a TUN device in each, and a carrier of packets.

A program, run inside of a network namespace of its own (``unshare --net --mount``): it makes a second one, a device in
each, and carries IP packets from one to the other: late, reordered, duplicated, or not at all. It prints ``ready PID``
when it works; PID is that of a process whose ``/proc/PID/ns/net`` is the namespace of the other end. Commands come on
standard input, a line each: ``blackhole``, ``heal``. It ends with its standard input.

Addresses are 10.77.0.1 for the near end, where the emulator was started, and 10.77.0.2 for the far one.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import fcntl
import heapq
import os
import random
import selectors
import signal
import struct
import subprocess
import sys
import time

NEAR, FAR = "10.77.0.1", "10.77.0.2"

TUNSETIFF = 0x400454CA
IFF_TUN, IFF_NO_PI = 0x0001, 0x1000
CLONE_NEWNET = 0x40000000
MTU = 1500
# Packets that a direction holds; further ones are lost, as in a real queue.
QUEUE = 1000


@dataclasses.dataclass
class Link:
    """The treatment of packets by the network.

    Args:
        delay: Minimum delay in seconds.
        jitter: Additional random delay in seconds. Packets overtake each other.
        loss: The share of lost packets.
        duplicates: The share of duplicated packets.
        seed: Of the random choices.
    """

    delay: float = 0.005
    jitter: float = 0.01
    loss: float = 0.02
    duplicates: float = 0.01
    seed: int = 0

    def arguments(self) -> list[str]:
        return [f"--{field.name}={getattr(self, field.name)}" for field in dataclasses.fields(self)]


def reason_to_skip() -> str | None:
    """Returns why there can be no such network here; ``None`` if there can."""
    if sys.platform != "linux":
        return "network namespaces are of Linux"
    if os.geteuid() != 0:
        return "only root makes network namespaces"
    if not os.path.exists("/dev/net/tun"):
        return "there is no /dev/net/tun"
    found = subprocess.run(["unshare", "--net", "ip", "link"], capture_output=True, check=False, timeout=20)
    return None if found.returncode == 0 else "network namespaces cannot be made here"


def _open_tun() -> int:
    tun = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tun, TUNSETIFF, struct.pack("16sH22x", b"bad0", IFF_TUN | IFF_NO_PI))
    return tun


def _configure(address: str) -> None:
    for command in (
        ["link", "set", "lo", "up"],
        ["addr", "add", f"{address}/24", "dev", "bad0"],
        ["link", "set", "bad0", "mtu", str(MTU), "up"],
    ):
        subprocess.run(["ip", *command], check=True, timeout=20)


def _unshare_net() -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")


def _make_far_end() -> tuple[int, int]:
    """Starts a process that keeps a namespace of its own; returns its device and its number."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _unshare_net()
        tun = _open_tun()
        _configure(FAR)
        os.write(writing, b"%d" % tun)
        while True:
            signal.pause()
    number = int(os.read(reading, 20))
    # Its device, as a descriptor of ours: both processes have the same user.
    pidfd = os.pidfd_open(pid)
    libc = ctypes.CDLL(None, use_errno=True)
    pidfd_getfd = 438
    tun = libc.syscall(pidfd_getfd, pidfd, number, 0)
    if tun < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return tun, pid


class _Carrier:
    """Moves packets between the devices."""

    def __init__(self, near: int, far: int, link: Link) -> None:
        self.ends = {near: far, far: near}
        self.link = link
        self.choose = random.Random(link.seed)
        self.hole = False
        self.waiting: list[tuple[float, int, int, bytes]] = []
        self.count = 0

    def take(self, device: int) -> None:
        while True:
            try:
                packet = os.read(device, 65536)
            except BlockingIOError:
                return
            link, choose = self.link, self.choose
            if self.hole or choose.random() < link.loss or len(self.waiting) > QUEUE:
                continue
            for _ in range(2 if choose.random() < link.duplicates else 1):
                due = time.monotonic() + link.delay + choose.random() * link.jitter
                self.count += 1
                heapq.heappush(self.waiting, (due, self.count, self.ends[device], packet))

    def give(self) -> None:
        while self.waiting and self.waiting[0][0] <= time.monotonic():
            _, _, device, packet = heapq.heappop(self.waiting)
            if not self.hole:
                try:
                    os.write(device, packet)
                except OSError:
                    continue

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for device in (*self.ends, sys.stdin.fileno()):
                selector.register(device, selectors.EVENT_READ)
            while True:
                timeout = max(0.0, self.waiting[0][0] - time.monotonic()) if self.waiting else 5.0
                for key, _ in selector.select(timeout):
                    if key.fd in self.ends:
                        self.take(key.fd)
                        continue
                    commands = os.read(key.fd, 4096)
                    if not commands:
                        return
                    self.hole = commands.split()[-1] == b"blackhole"
                    print("done", flush=True)
                self.give()


def main(*arguments: str) -> None:
    parser = argparse.ArgumentParser(description="Carry packets between two network namespaces, badly.")
    for field in dataclasses.fields(Link):
        parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
    link = Link(**vars(parser.parse_args(arguments)))
    near = _open_tun()
    _configure(NEAR)
    far, pid = _make_far_end()
    try:
        print(f"ready {pid}", flush=True)
        _Carrier(near, far, link).run()
    finally:
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)
