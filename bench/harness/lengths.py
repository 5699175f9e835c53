"""How often and how long each peer runs in a cell, and how long a cell takes. It knows scenarios, and no processes."""

from dataclasses import dataclass

from harness.scenario import Job, Scenario

__all__ = ["HEADLINE_ROUNDS", "Lengths"]

HEADLINE_ROUNDS = 5
# The length of a window in a quick run, which measures nothing.
QUICK_SECONDS = 0.02
# For estimates: what a window takes in addition to its own length, to start the process, connect and end.
START_SECONDS = 0.4
# For estimates: the time to open one of many connections.
CONNECTION_SECONDS = 0.0003


@dataclass(frozen=True)
class Lengths:
    """The rounds of a run, and the lengths of its windows.

    Attributes:
        rounds, seconds, warmup: the values of the command line; None: those of the scenario.
        quick: each peer runs once, for a moment.
        headline: the headline set is measured, in `HEADLINE_ROUNDS` rounds.
    """

    rounds: int | None = None
    seconds: float | None = None
    warmup: float | None = None
    quick: bool = False
    headline: bool = False

    def rounds_of(self, scenario: Scenario, job: Job) -> int:
        """Returns the number of windows of each peer in a cell."""
        if self.rounds is not None or self.quick:
            return self.rounds or 1
        most = HEADLINE_ROUNDS if self.headline else scenario.rounds
        return min(most, job.workload.rounds or most)

    def seconds_of(self, scenario: Scenario, job: Job) -> float:
        """Returns the length of a window in a cell."""
        usual = QUICK_SECONDS if self.quick else job.workload.seconds or scenario.seconds
        return (usual if self.seconds is None else self.seconds) * job.workload.stretch

    def warmup_of(self, scenario: Scenario) -> float:
        """Returns how long a peer runs before each window."""
        usual = QUICK_SECONDS if self.quick else scenario.warmup
        return usual if self.warmup is None else self.warmup

    def expected(self, scenario: Scenario, job: Job) -> float:
        """Returns about how many seconds a cell takes."""
        options = job.workload.options
        window = self.seconds_of(scenario, job) * job.workload.windows + self.warmup_of(scenario) + START_SECONDS
        window += CONNECTION_SECONDS * int(options.get("connections", 0))
        # Memory is read twice, each time after the server has been idle so long.
        window += 2 * float(options.get("settle", 0.0))
        return window * self.rounds_of(scenario, job) * len(job.peers)
