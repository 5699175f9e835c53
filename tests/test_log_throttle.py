"""Frequent events are seldom logged."""

from __future__ import annotations

import logging

import pytest

from support.serving import LOGGER, logged
from support.subject import IS_WIRESPEED

pytestmark = pytest.mark.wirespeed_only("the log is ours")

if IS_WIRESPEED:
    from wirespeed._server.log import LogThrottle


def test_one(caplog: pytest.LogCaptureFixture) -> None:
    log_throttle = LogThrottle(logging.getLogger(LOGGER))
    assert log_throttle.due is None
    log_throttle.add("kind", 10, logging.WARNING, "it was %s", "this")
    assert log_throttle.due == 11
    log_throttle.log_due(10.9)
    assert logged(caplog) == []
    log_throttle.log_due(11)
    assert logged(caplog) == ["it was this"]


def test_many(caplog: pytest.LogCaptureFixture) -> None:
    """A record after a second, then one a minute, each with its number; it shows the last event."""
    log_throttle = LogThrottle(logging.getLogger(LOGGER))
    for number in range(20_000):
        now = number / 100
        log_throttle.add("kind", now, logging.WARNING, "number %d", number)
        log_throttle.log_due(now)
    assert logged(caplog) == [
        "number 100 (101 times)",
        "number 6100 (6000 times)",
        "number 12100 (6000 times)",
        "number 18100 (6000 times)",
    ]
    log_throttle.log_due(241)
    assert logged(caplog)[-1] == "number 19999 (1899 times)"
    # A minute without an event ends the series.
    log_throttle.log_due(301)
    assert len(logged(caplog)) == 5
    assert log_throttle.due is None
    log_throttle.add("kind", 302, logging.WARNING, "number %d", 1)
    assert log_throttle.due == 303


def test_kinds(caplog: pytest.LogCaptureFixture) -> None:
    log_throttle = LogThrottle(logging.getLogger(LOGGER))
    log_throttle.add("one", 0, logging.WARNING, "one")
    log_throttle.add("other", 0.5, logging.ERROR, "other")
    assert log_throttle.due == 1
    log_throttle.log_due(1.2)
    assert logged(caplog) == ["one"]
    assert log_throttle.due == 1.5
    log_throttle.log_due(1.5)
    assert [(entry.levelname, entry.getMessage()) for entry in caplog.records] == [
        ("WARNING", "one"),
        ("ERROR", "other"),
    ]


def test_finish(caplog: pytest.LogCaptureFixture) -> None:
    """Events without a record get one; the rest of a series with a record gets none."""
    log_throttle = LogThrottle(logging.getLogger(LOGGER))
    log_throttle.add("old", 0, logging.WARNING, "old")
    log_throttle.log_due(1)
    log_throttle.add("old", 2, logging.WARNING, "old")
    log_throttle.add("new", 2, logging.WARNING, "new")
    log_throttle.add("new", 2, logging.WARNING, "new")
    log_throttle.finish()
    assert logged(caplog) == ["old", "new (2 times)"]
    assert log_throttle.due is None


def test_first_event_of_a_source_is_logged_immediately(caplog: pytest.LogCaptureFixture) -> None:
    """Later ones are logged as a number, a minute later; for a new source, the first again."""
    log_throttle = LogThrottle(logging.getLogger(LOGGER))
    for number in range(1000):
        log_throttle.add_from_peer("a", "refused", 10 + number / 1000, logging.WARNING, "refused (%d)", number)
    log_throttle.add_from_peer("b", "refused", 11, logging.WARNING, "refused (%d)", -1)
    log_throttle.add_from_peer("a", "failed", 11, logging.WARNING, "failed")
    assert logged(caplog) == ["refused (0)", "refused (-1)", "failed"]
    assert log_throttle.due == 70
    log_throttle.log_due(71)
    assert logged(caplog)[3:] == ["refused (999); 999 more like it"]
    # A minute without an event ends the series.
    log_throttle.log_due(131)
    assert log_throttle.due is None
    log_throttle.add_from_peer("a", "refused", 140, logging.WARNING, "refused (%d)", 7)
    assert logged(caplog)[4:] == ["refused (7)"]


def test_first_event_logged_elsewhere(caplog: pytest.LogCaptureFixture) -> None:
    """An event with more to show than a single line."""
    log_throttle = LogThrottle(logging.getLogger(LOGGER))
    begins = [log_throttle.is_first("a", "failed", 10 + n, logging.ERROR, "failed (%d)", n) for n in range(3)]
    assert begins == [True, False, False]
    assert logged(caplog) == []
    log_throttle.log_due(70)
    assert logged(caplog) == ["failed (2); 2 more like it"]
    log_throttle.log_due(130)
    assert log_throttle.is_first("a", "failed", 131, logging.ERROR, "failed (%d)", 3)
    # The level is disabled.
    assert not log_throttle.is_first("a", "failed", 131, logging.DEBUG, "failed (%d)", 3)


def test_many_new_sources(caplog: pytest.LogCaptureFixture) -> None:
    """Addresses and causes cost a peer nothing: for very many, there is one record and one number."""
    log_throttle = LogThrottle(logging.getLogger(LOGGER))
    for number in range(10_000):
        log_throttle.add_from_peer(number, f"cause {number}", 1, logging.WARNING, "refused (%d)", number)
    found = len(logged(caplog))
    assert 10 < found < 100
    log_throttle.finish()
    assert logged(caplog)[found:] == [f"refused (9999); {10_000 - found} more like it"]


def test_disabled_levels(caplog: pytest.LogCaptureFixture) -> None:
    """No state is kept for them."""
    logger = logging.getLogger(LOGGER)
    log_throttle = LogThrottle(logger)
    with caplog.at_level(logging.WARNING, LOGGER):
        log_throttle.add_from_peer("a", "refused", 1, logging.INFO, "refused")
        assert log_throttle.due is None


def test_remaining_numbers_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    log_throttle = LogThrottle(logging.getLogger(LOGGER))
    for _ in range(3):
        log_throttle.add_from_peer("a", "refused", 1, logging.WARNING, "refused")
    log_throttle.add_from_peer("b", "refused", 1, logging.WARNING, "refused")
    log_throttle.finish()
    assert logged(caplog) == ["refused", "refused", "refused; 2 more like it"]
