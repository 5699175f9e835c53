"""A schedule and how one is drawn: options of the engine, and steps of actors and of clients."""

from __future__ import annotations

import dataclasses
import json
import random
from typing import Any

__all__ = ["CLIENTS", "Plan", "Step", "draw"]

# The actor of the clients' steps.
CLIENTS = -1

_TOPICS = ["a", "a.b", "a.b.c", "b", "b.c"]
_PATTERNS = [*_TOPICS, "a.*", "a.>", "*.b", ">", "b.*"]
_SIZES = [30, 30, 30, 200, 2_000, 20_000, 70_000]


@dataclasses.dataclass(frozen=True)
class Step:
    """One action.

    Attributes:
        actor: The actor; ``CLIENTS``: a client.
        verb: A call, or an action of a client.
        more: Further arguments.
    """

    actor: int
    verb: str
    more: dict[str, Any]

    def __str__(self) -> str:
        who = "clients" if self.actor == CLIENTS else f"actor {self.actor}"
        return f"{who}: {self.verb}" + "".join(f" {name}={value!r}" for name, value in self.more.items())


@dataclasses.dataclass(frozen=True)
class Plan:
    """A schedule.

    Attributes:
        seed: Its seed.
        options: Of the engine, of the consumer of events, of the end.
        steps: Those of one actor are done in their order, those of several at the same time.
    """

    seed: int
    options: dict[str, Any]
    steps: tuple[Step, ...]

    @property
    def actors(self) -> list[int]:
        return sorted({step.actor for step in self.steps})

    def of(self, actor: int) -> list[Step]:
        return [step for step in self.steps if step.actor == actor]

    def dump(self) -> str:
        """Writes the plan as JSON, one step in a line."""
        lines = [json.dumps([step.actor, step.verb, step.more]) for step in self.steps]
        return "\n".join([json.dumps({"seed": self.seed, "options": self.options}), *lines, ""])

    @classmethod
    def load(cls, text: str) -> Plan:
        """Reads the output of ``dump``."""
        first, *lines = text.strip().splitlines()
        head = json.loads(first)
        return cls(head["seed"], head["options"], tuple(Step(*json.loads(line)) for line in lines))

    def __str__(self) -> str:
        lines = [f"seed {self.seed}", *(f"  {name} = {value!r}" for name, value in self.options.items())]
        return "\n".join([*lines, *(f"  {number:3}. {step}" for number, step in enumerate(self.steps, 1))])


def draw(seed: int) -> Plan:
    """Draws a schedule from a seed."""
    rng = random.Random(seed)
    calm = rng.random() < 0.4
    options: dict[str, Any] = {
        "workers": rng.randint(1, 3),
        "policy": rng.choice(["disconnect", "disconnect", "drop_oldest", "drop_newest", "conflate"]),
        "outbox_limit": rng.choice([2_000, 50_000, 1 << 20, 16 << 20]),
        "mailbox_limit": rng.choice([1, 10_000, 1 << 20]),
        "max_events": rng.choice([1, 10, 65_536]),
        "max_event_bytes": rng.choice([100, 64 << 20]),
        "compression": rng.random() < 0.3,
        "taker": rng.choice(["thread", "thread", "threads", "asyncio", "serve", "run", "pool"]),
        "batch": rng.choice([1, 7, 1024]),
        "echoes": rng.random() < 0.5,
        # "drain" after the actors, or "stop" while they are at work.
        "end": rng.choice(["drain", "drain", "drain", "stop", "both"]),
        # The actors that are tasks of one loop, and not threads.
        "tasks": sorted(rng.sample(range(4), rng.choice([0, 0, 1, 2]))),
        "clients": rng.randint(1, 6),
        "calm": calm,
        # A separate generator, so that the schedules of known seeds stay the same.
        "busy_poll": random.Random(~seed).choice([0.0, 0.0, 0.0005]),
    }
    actors = rng.randint(1, 4)
    clients = options["clients"]
    steps: list[Step] = []
    for _ in range(rng.randint(10, 120)):
        if rng.random() < 0.25:
            verb = rng.choice(_CALM_CLIENTS if calm else _CLIENTS)
            if verb == "connect":
                steps.append(Step(CLIENTS, "connect", {"client": clients}))
                clients += 1
                continue
            more: dict[str, Any] = {"client": rng.randrange(clients)}
            if verb == "say":
                more |= {"count": rng.choice([1, 3, 50]), "size": rng.choice(_SIZES)}
            elif verb == "nap":
                more = {"seconds": rng.choice([0.0, 0.001, 0.01])}
            steps.append(Step(CLIENTS, verb, more))
        else:
            steps.append(_call(rng, rng.randrange(actors), clients, calm))
    return Plan(seed, options, tuple(steps))


_CLIENTS = ["pause", "resume", "slow", "say", "say", "ping", "nap", "connect", "close", "reset", "vanish"]
_CALM_CLIENTS = ["pause", "resume", "slow", "say", "say", "ping", "nap"]
_CALLS = [
    *(["send"] * 6), *(["publish"] * 6), *(["broadcast"] * 3), *(["subscribe"] * 5), *(["unsubscribe"] * 2),
    "room", "nap", "look", "collect", "close",
]  # fmt: skip


def _call(rng: random.Random, actor: int, clients: int, calm: bool) -> Step:
    verb = rng.choice(_CALLS[:-1] if calm else _CALLS)
    client = rng.randrange(clients)
    exclude = rng.choice([None, None, client])
    sized = {"size": rng.choice(_SIZES), "text": rng.random() < 0.5, "times": rng.choice([1, 1, 5, 40])}
    match verb:
        case "send":
            more: dict[str, Any] = {"client": client, **sized}
        case "publish":
            key = rng.choice([None, "k", "l"])
            more = {"topic": rng.choice(_TOPICS), "exclude": exclude, "key": key, **sized}
        case "broadcast":
            more = {"exclude": exclude, **sized}
        case "room":
            more = {"topic": rng.choice([None, *_TOPICS])}
        case "subscribe" | "unsubscribe":
            more = {"client": client, "pattern": rng.choice(_PATTERNS)}
        case "close":
            more = {"client": client, "code": rng.choice([1000, 4000])}
        case "nap":
            more = {"seconds": rng.choice([0.0, 0.0005, 0.005])}
        case _:
            more = {}
    return Step(actor, verb, more)
