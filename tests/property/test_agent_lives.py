"""Whatever goes wrong in an agent's life, the machine is left as it was, and what is reported is true."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie_lab.benchmarks.lives.bed import state_folder
from joulie_lab.benchmarks.lives.life import run_life
from joulie_lab.machines.library import MACHINES


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    logging.disable(logging.CRITICAL)
    try:
        with state_folder() as place:
            yield place
    finally:
        logging.disable(logging.NOTSET)


@given(machine=st.sampled_from(sorted(MACHINES)), seed=st.integers(0, 2**32))
# The same lives each time: `joulie bench lives` is where others are drawn and counted.
@settings(max_examples=200, deadline=None, derandomize=True)
def test_a_life_with_faults_leaves_no_cap_and_no_untruth(folder: Path, machine: str, seed: int) -> None:
    life = run_life(machine, str(seed), folder)
    assert not life.violations
    assert life.caps > 0
    assert life.faults.total() > 0
