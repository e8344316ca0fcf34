"""Silos that die, hang or come late in real runs."""

from __future__ import annotations

import pytest

from tests.chaos.processes import Bed
from tests.chaos.silo import FAULTS

SAMPLE = [fault for fault in FAULTS if not fault.startswith("a silo dies")]  # those are among the kills


@pytest.fixture(scope="module")
def bed(tmp_path_factory: pytest.TempPathFactory) -> Bed:
    return Bed(tmp_path_factory.mktemp("chaos"))


@pytest.mark.parametrize("fault", SAMPLE)
def test_missing_and_late_silos(fault: str, bed: Bed) -> None:
    assert FAULTS[fault](bed)[1] == ""
