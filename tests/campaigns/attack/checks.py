"""The test that the files share."""

from __future__ import annotations

import pytest

from .encrypting import OPENSSL
from .measuring import Attacked, complaints, defects
from .report import one_line
from .table import row_of

# An attack continues longer while its bound seems exceeded: a busy machine needs more time to show its effect.
SECONDS = (0.5, 1.0, 2.0)


pytestmark = [pytest.mark.wirespeed_only("the limits are ours"), pytest.mark.timeout(300)]


def test_attack_stays_within_bounds(attacked: Attacked, slug: str) -> None:
    """Attacks, and checks that all bounds hold."""
    row = row_of(slug)
    if row.port == "tls" and "renegotiations" in slug and OPENSSL is None:
        pytest.skip("openssl is not installed")
    # Load by other programs may look like an effect of the attack, but not every time.
    found: list[str] = []
    for seconds in SECONDS:
        figures = attacked.run(row, seconds)
        print(one_line(figures))
        wrong = list(defects(figures))
        assert not wrong, "\n".join(wrong)
        found = list(complaints(row, figures))
        if not found:
            return
    pytest.fail("\n".join(found))
