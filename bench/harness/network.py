"""The network that is measured on: loopback, with the congestion control that Linux comes with."""

import fcntl
import os
import socket
import struct
from pathlib import Path

__all__ = ["enter"]

USUAL = "cubic"
CONTROL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
SIOCSIFFLAGS, IFF_UP = 0x8914, 1  # netdevice(7)


def enter() -> str:
    """Moves this thread, and all that it starts from now on, to a network where the usual control is the default.

    Where it is anyway, this is the system's. A control that paces, as bbr does, arms a timer for each piece that is
    sent, which in a virtual machine costs more than the piece: what is measured then is that. A network of its own
    needs root; without, or before Python 3.12, the system's default is left. Returns the control's name.
    """
    try:
        if CONTROL.read_text().strip() != USUAL:
            _move()
        return CONTROL.read_text().strip()
    except (AttributeError, OSError):
        return CONTROL.read_text().strip() if CONTROL.exists() else "unknown"


def _move() -> None:
    """Moves to a network of its own, or, if that cannot be made whole, leaves this thread where it is.

    Raises:
        OSError: it is where it was.
        AttributeError: this Python cannot.
    """
    with open("/proc/thread-self/ns/net", "rb") as before:
        os.unshare(os.CLONE_NEWNET)  # type: ignore[attr-defined, unused-ignore]
        try:
            with socket.socket() as any_socket:
                fcntl.ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", IFF_UP))
            CONTROL.write_text(USUAL)
        except OSError:
            os.setns(before.fileno(), os.CLONE_NEWNET)  # type: ignore[attr-defined, unused-ignore]
            raise
