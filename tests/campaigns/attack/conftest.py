"""Each file of this folder attacks some kinds, each of them in one process; ``attack.table`` lists the attacks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, cast

import pytest

from support.certificates import Certificates
from support.samples import Share

# Modules that know the implementation under test are imported late: this file may be loaded before the choice is made.
if TYPE_CHECKING:
    from campaigns.attack.measuring import Attacked


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "slug" in metafunc.fixturenames:
        from campaigns.attack import table

        kinds = cast(tuple[str, ...], cast(ModuleType, metafunc.module).KINDS)
        rotation = metafunc.config.getoption("--rotation")
        matrix = "all" if metafunc.config.getoption("--campaign") else "default"
        found = [(kind, row.slug) for kind in kinds for row in table.chosen(kind, matrix)]
        if matrix == "default":
            short = {(kind, row.slug) for kind in kinds for row in table.chosen(kind, "short")}
            share = Share(rotation).indexes(len(found)) if rotation is not None else ()
            found = [case for index, case in enumerate(found) if case in short or index in share]
        metafunc.parametrize(("kind", "slug"), found, ids=["-".join(one) for one in found], scope="module")


@pytest.fixture(scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def attacked(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    if not Path("/proc/self/status").exists():
        pytest.skip("what a process takes is looked up where Linux has it")
    from campaigns.attack.measuring import Attacked

    with Attacked(kind, Certificates(tmp_path_factory.mktemp("attacked"))) as attacked:
        yield attacked
