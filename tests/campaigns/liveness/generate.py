"""Draws schedules: every random choice is a function of the setting and the seed."""

from __future__ import annotations

import random
from typing import Any

from .plan import Plan, Step
from .settings import Setting

# The themes of schedules, with the weights of verbs. Verbs that are not named have a tenth of their weight in "mixed".
_MIXED: dict[str, float] = {
    "send": 12, "fragments": 2, "send_many": 3, "send_nowait": 3, "flush": 4, "ping": 4, "ping_sent": 2, "pong": 2,
    "broadcast": 1, "recv": 5, "recv_many": 2, "recv_nowait": 1, "stream": 1, "iterate": 2, "stats": 1,
    "wait_closed": 0.5, "p.pause": 3, "p.resume": 3, "p.drain": 3, "p.sip": 3, "p.dribble": 1, "p.trickle": 1,
    "p.quiet": 0.5, "p.talk": 0.5, "p.ping": 2, "p.pong": 1, "p.message": 5, "p.flood": 1, "turn": 4, "nap": 2,
    "cancel": 5, "poke": 1, "check": 2, "collect": 0.2,
}  # fmt: skip
_ENDING = {"close": 0.4, "abort": 0.1, "p.close": 0.3, "p.reset": 0.1, "p.finish": 0.1}
_THEMES: dict[str, dict[str, float]] = {
    "mixed": _MIXED,
    "pressure": {
        "send": 30, "send_many": 4, "send_nowait": 4, "fragments": 2, "flush": 6, "ping": 3, "ping_sent": 5, "pong": 5,
        "p.pause": 5, "p.drain": 6, "p.sip": 6, "p.resume": 2, "turn": 5, "cancel": 4, "check": 3,
    },
    "taking": {
        "recv": 12, "recv_many": 5, "recv_nowait": 3, "stream": 5, "iterate": 4, "p.message": 15, "p.flood": 4,
        "p.trickle": 3, "p.ping": 3, "cancel": 8, "turn": 6, "check": 2,
    },
    # The peer reads nothing, sends until its data is no longer read, and then resets the connection.
    "full": {
        "send": 20, "send_many": 4, "fragments": 2, "flush": 5, "ping_sent": 2, "p.message": 15, "p.flood": 5,
        "turn": 5, "cancel": 1,
    },
    "ending": _MIXED | {name: 15 * weight for name, weight in _ENDING.items()},
}  # fmt: skip

_SIZES = [30, 30, 100, 100, 700, 3000, 3000, 9000, 9000, 20_000, 50_000, 100_000]
_LARGE = [132_000, 140_000, 300_000]


def draw(setting: Setting, seed: int) -> Plan:
    """Draws the schedule of a seed.

    Args:
        setting: The setting of the run.
        seed: The seed.
    """
    return _Generator(setting, seed).plan()


class _Generator:
    def __init__(self, setting: Setting, seed: int) -> None:
        self.rng = random.Random(f"{setting.name} {seed}")
        self.setting = setting
        self.seed = seed
        self.actors = self.rng.choice([2, 3, 4, 5, 6])
        self.links = self.rng.choice([1, 1, 1, 2]) if setting.role == "server" else 1
        # One receiver, whose order can be checked, or several.
        self.receiver = self.rng.randrange(self.actors) if self.rng.random() < 0.7 else None
        self.large = self.rng.random() < 0.4

    def plan(self) -> Plan:
        rng = self.rng
        theme = dict(_MIXED)
        for name in theme:
            theme[name] /= 10
        leaning = rng.choice(list(_THEMES))
        theme.update(_THEMES[leaning])
        if leaning != "ending" and rng.random() < 0.2:
            theme.update(_ENDING)
        verbs = self._possible(theme)
        steps = [
            self._step(verb) for verb in rng.choices(list(verbs), list(verbs.values()), k=rng.choice([8, 15, 30, 50]))
        ]
        if leaning == "full":
            steps = [Step("pause"), *(step for step in steps if step.verb not in ("resume", "drain")), Step("reset")]
        elif rng.random() < 0.6:
            steps.insert(rng.randrange(3), Step("pause"))
        return Plan(self.setting, self.seed, self._options(), tuple(steps))

    def _possible(self, theme: dict[str, float]) -> dict[str, float]:
        left_out = (
            {"cancel", "collect"} if self.setting.blocking else {"poke"} if self.setting.loop == "uvloop" else set()
        )
        if self.setting.blocking:
            left_out |= {"send_nowait", "broadcast", "wait_closed"}
        if self.setting.role == "client":
            left_out |= {"broadcast"}
        return {verb: weight for verb, weight in theme.items() if verb not in left_out}

    def _options(self) -> dict[str, Any]:
        rng = self.rng
        high = rng.choice([1, 500, 2000, 5000, 20_000])
        options: dict[str, Any] = {
            "actors": self.actors,
            "links": self.links,
            "send_buffer": rng.choice([2304, 4096, 8192, 16_384]),
            "receive_buffer": rng.choice([2304, 4096, 8192, 16_384]),
            "max_queue": rng.choice([1, 2, 4, 16, None]),
            "ping_interval": rng.choice([None, None, None, 0.002, 0.01, 0.05]),
            # The peer runs in the loop, so that the schedule is always the same, or in a thread of its own.
            "threaded": self.setting.blocking or rng.random() < 0.2,
            "end": rng.choices(["close", "peer", "abort", "reset", "finish"], [5, 4, 1, 1, 1])[0],
        }
        if not self.setting.blocking:
            options["write_limit"] = rng.choice([high, high, (high, 0), (high, high)])
            options["max_queue_bytes"] = rng.choice([1000, 10_000, 100_000, None])
            options["yield_after"] = rng.choice([1, 3, 1024])
        return options

    def _size(self) -> int:
        rng = self.rng
        base = rng.choice(_LARGE) if self.large and rng.random() < 0.12 else rng.choice(_SIZES)
        return base + rng.randrange(7)

    def _step(self, name: str) -> Step:
        rng = self.rng
        link = rng.randrange(self.links)
        if name.startswith("p."):
            verb = name[2:]
            return Step(verb, link=link, more=self._peer_more(verb))
        more: list[tuple[str, Any]] = []
        if name in ("turn", "poke", "nap"):
            choices = {"turn": [1, 1, 2, 3, 8], "nap": [0, 1, 3], "poke": [0, 20, 200, 2000]}[name]
            if name == "poke" and self.setting.blocking:
                # There, a call of the main thread is interrupted.
                more = [("count", rng.choice(choices)), ("call", rng.choice(["send", "send", "recv", "flush", "ping"]))]
                return Step(name, link=link, more=(*more, ("size", self._size()), ("text", True)))
            return Step(name, more=(("count", rng.choice(choices)),))
        if name in ("check", "collect"):
            return Step(name)
        actor = rng.randrange(self.actors)
        if name == "cancel":
            return Step(name, actor)
        if name in ("recv", "recv_many", "stream", "iterate", "recv_nowait") and self.receiver is not None:
            actor = self.receiver
        more += self._call_more(name)
        if rng.random() < 0.25:
            more.append(("before", rng.choice(["drain", "drain", "drain", "sip", "ping", "message"])))
        timed = name not in ("fragments", "send_nowait", "stats", "abort", "broadcast", "recv_nowait", "stream")
        if timed and rng.random() < 0.15:
            more.append(("timeout", rng.choice([0, 0, 0.0005, 0.002])))
        more.append(("turns", rng.choice([0, 0, 0, 1, 1, 2])))
        return Step(name, actor, link, tuple(more))

    def _call_more(self, name: str) -> list[tuple[str, Any]]:
        rng = self.rng
        if name in ("send", "send_nowait", "broadcast"):
            more: list[tuple[str, Any]] = [("size", self._size()), ("text", rng.random() < 0.5)]
            if self.setting.deflate and name != "broadcast" and rng.random() < 0.2:
                more.append(("compress", rng.random() < 0.5))
            if name == "broadcast":
                more.append(("slow", "skip" if self.setting.dropin else rng.choice(["skip", "skip", "drop", "close"])))
            return more
        if name in ("fragments", "send_many"):
            sizes = tuple(self._size() for _ in range(rng.choice([1, 2, 3, 6])))
            more = [("sizes", sizes), ("text", rng.random() < 0.5), ("lazy", rng.random() < 0.4)]
            # The last item cannot be encoded.
            return [*more, ("bad", True)] if name == "send_many" and rng.random() < 0.3 else more
        if name in ("recv", "recv_many", "recv_nowait"):
            more = [("limit", rng.choice([1, 2, 1000]))] if name == "recv_many" else []
            decode = rng.choice([None, None, True, True, False])
            return more if decode is None else [*more, ("decode", decode)]
        if name == "iterate":
            return [("count", rng.choice([1, 2, 5]))]
        if name == "stream":
            return [("leave", rng.choice([0, 0, 1]))]
        if name == "close":
            return [("code", rng.choice([1000, 1001, 4000]))]
        return []

    def _peer_more(self, verb: str) -> tuple[tuple[str, Any], ...]:
        rng = self.rng
        if verb in ("sip", "dribble", "trickle"):
            return (("count", rng.choice([1, 5, 100, 1500, 9000])),)
        if verb == "message":
            sizes = tuple(self._size() for _ in range(rng.choice([1, 1, 1, 2, 4])))
            more = (("sizes", sizes), ("text", rng.random() < 0.5), ("ping", rng.random() < 0.3))
            return (*more, ("garbage", rng.random() < 0.3))
        if verb == "flood":
            return (("sizes", (rng.choice([60, 500]),)), ("count", rng.choice([5, 50, 200])))
        if verb == "close":
            return (("code", rng.choice([1000, 1001, 1011, 4000])),)
        return ()
