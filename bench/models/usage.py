"""What a window of a benchmark cost: wall time, CPU time of this process, CPU time of the server.

Called by the measuring loops at both ends of the window, never inside it.
"""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Usage", "process_cpu"]


@dataclass(frozen=True)
class Usage:
    """A reading of the clocks, in seconds; the difference of two is the cost of what lies between."""

    wall: float
    user: float
    system: float
    server: float | None

    @classmethod
    def now(cls, server_pid: int | None) -> Usage:
        """Reads all clocks. All threads of this process count, helper threads included."""
        server = None if server_pid is None else process_cpu(server_pid)
        own = resource.getrusage(resource.RUSAGE_SELF)
        return cls(time.perf_counter(), own.ru_utime, own.ru_stime, server)

    def __sub__(self, earlier: Usage) -> Usage:
        server = None if self.server is None or earlier.server is None else self.server - earlier.server
        return Usage(self.wall - earlier.wall, self.user - earlier.user, self.system - earlier.system, server)


def process_cpu(pid: int) -> float | None:
    """Returns the CPU seconds that all threads of a process have used; None where /proc does not tell."""
    try:
        # Nanoseconds on the CPU. /proc/PID/stat counts in ticks of 10 ms: too coarse for a short window.
        threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
        nanoseconds = sum(int(thread.read_text().split()[0]) for thread in threads)
        if nanoseconds:
            return nanoseconds / 1e9
        # The name in parentheses may contain spaces; utime and stime are fields 14 and 15, 12 and 13 after
        # it.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
