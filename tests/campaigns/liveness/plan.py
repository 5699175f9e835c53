"""A schedule: a setting, some options and a list of plain steps. It can be printed, written to a file and read.

It knows no socket and no loop: ``generate`` makes plans, ``asyncio_run`` and ``threads_run`` execute them.
"""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from .settings import Setting, named

# A text that `send_many` refuses, because it cannot be encoded as UTF-8.
BAD = "\ud800"

# Commands of the peer.
PEER = frozenset(
    {
        "pause", "resume", "drain", "sip", "dribble", "trickle", "quiet", "talk", "ping", "pong", "message", "flood",
        "close", "reset", "finish",
    }
)  # fmt: skip

# Calls that end by themselves once the peer reads.
SENDING = frozenset(["send", "fragments", "send_many", "send_nowait", "flush", "pong", "ping_sent", "broadcast"])
# Calls that wait for a message.
RECEIVING = frozenset(["recv", "recv_many", "recv_nowait", "stream", "iterate"])
CALLS = SENDING | RECEIVING | frozenset(["ping", "close", "abort", "stats", "wait_closed"])


@dataclasses.dataclass(frozen=True)
class Step:
    """One action.

    Attributes:
        verb: A call, a command of the peer, or one of "turn", "nap", "cancel", "poke", "check", "collect".
        actor: The calling or cancelled actor; -1 if none.
        link: The connection.
        more: Further arguments: sizes, a timeout, ``before``: the peer's action right before the call, without a turn
            of the loop in between.
    """

    verb: str
    actor: int = -1
    link: int = 0
    more: tuple[tuple[str, Any], ...] = ()

    @property
    def is_call(self) -> bool:
        return self.actor >= 0 and self.verb in CALLS

    def get(self, name: str, default: Any = None) -> Any:
        return dict(self.more).get(name, default)

    def without(self, name: str) -> Step:
        return dataclasses.replace(self, more=tuple(item for item in self.more if item[0] != name))

    def __str__(self) -> str:
        who = f"actor {self.actor}: " if self.actor >= 0 else f"peer {self.link}: " if self.verb in PEER else ""
        where = f" link={self.link}" if self.actor >= 0 and self.link else ""
        return who + self.verb + where + "".join(f" {name}={value!r}" for name, value in self.more)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A schedule.

    Attributes:
        setting: The setting of the run.
        seed: Its seed.
        options: Arguments of the connection, sizes of the buffers of sockets, the kind of end.
        steps: In their order.
    """

    setting: Setting
    seed: int
    options: dict[str, Any]
    steps: tuple[Step, ...]

    def with_steps(self, steps: Any) -> Plan:
        return dataclasses.replace(self, steps=tuple(steps))

    def with_option(self, name: str, value: Any) -> Plan:
        return dataclasses.replace(self, options={**self.options, name: value})

    def dump(self) -> str:
        """Writes the plan as JSON, one step in a line."""
        steps = [json.dumps([step.verb, step.actor, step.link, dict(step.more)]) for step in self.steps]
        head = json.dumps({"setting": self.setting.name, "seed": self.seed, "options": self.options})
        return "\n".join([head, *steps, ""])

    @classmethod
    def load(cls, text: str) -> Plan:
        """Reads the output of ``dump``."""
        first, *lines = text.strip().splitlines()
        head = json.loads(first)
        options = {name: tuple(value) if isinstance(value, list) else value for name, value in head["options"].items()}
        steps = [
            Step(verb, actor, link, tuple((name, _hashable(value)) for name, value in more.items()))
            for verb, actor, link, more in map(json.loads, lines)
        ]
        return cls(named(head["setting"]), head["seed"], options, tuple(steps))

    def __str__(self) -> str:
        lines = [f"setting {self.setting}, seed {self.seed}"]
        lines += [f"  {name} = {value!r}" for name, value in self.options.items()]
        lines += [f"  {number:3}. {step}" for number, step in enumerate(self.steps, 1)]
        return "\n".join(lines)


def decoding(step: Step) -> dict[str, bool]:
    """Returns the argument of a receiving call."""
    decode = step.get("decode")
    return {} if decode is None else {"decode": decode}


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
