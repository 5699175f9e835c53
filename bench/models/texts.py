"""Text messages for what compression does with them: of much repetition, and of none."""

import json
import random

from models.content import ContentError

__all__ = ["texts"]

# All messages together are several times as long as the longest window that deflate has, 32 KiB: none of them
# is still remembered when its turn comes again, and would then compress to nearly nothing.
TOGETHER = 128 << 10

SEED = 6455
SYMBOLS = ("BTCUSDT", "ETHUSDT", "SOLUSDT", "XRPUSDT")
# All of ASCII that can be printed.
PRINTABLE = [chr(code) for code in range(32, 127)]


def texts(content: str, size: int) -> list[str]:
    """Returns messages of so many characters of ASCII, an even number of them, no two alike.

    Args:
        content: `repetitive`: trades of a market in JSON, their numbers varying; `random`: any characters that can be
            printed.
        size: Characters, and bytes, of a message.
    """
    makers = {"repetitive": _trades, "random": _noise}
    if content not in makers:
        raise ContentError(f"compression is for text: --content must be one of {', '.join(makers)}")
    if size < 32:
        raise ContentError(f"a size of {size} is too small for a text to be compressed, 32 is the least")
    count = max(4, TOGETHER // size // 2 * 2)
    whole = makers[content](count * size)
    return [whole[start : start + size] for start in range(0, count * size, size)]


def _trades(length: int) -> str:
    numbers = random.Random(SEED)
    parts: list[str] = []
    trade, now = 812_000_000, 1_700_000_000_000
    prices = dict(zip(SYMBOLS, (64_250.0, 3_420.0, 148.0, 0.52), strict=True))
    # None is shorter than a hundred characters.
    for _ in range(length // 100 + 1):
        symbol = numbers.choice(SYMBOLS)
        prices[symbol] *= 1 + numbers.uniform(-1e-4, 1e-4)
        trade += numbers.randint(1, 9)
        now += numbers.randint(0, 40)
        price, quantity = f"{prices[symbol]:.4f}", f"{numbers.uniform(0.001, 9):.5f}"
        data = {"e": "trade", "E": now, "s": symbol, "t": trade, "p": price, "q": quantity, "m": numbers.random() < 0.5}
        document = {"stream": f"{symbol.lower()}@trade", "data": data}
        parts.append(json.dumps(document, separators=(",", ":")))
    return "".join(parts)[:length]


def _noise(length: int) -> str:
    return "".join(random.Random(SEED).choices(PRINTABLE, k=length))
