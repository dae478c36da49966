"""`joulie bench consolidation`: what emptying nodes saves and costs, natively."""

import math

import pytest

from joulie_lab.benchmarks.consolidation import MOVING, Load, judge, settings_for, summarise
from joulie_lab.benchmarks.marginal_native import Moving

HALF_HOUR = "checkpoint every 30 min"


def test_what_is_left_of_work_when_a_job_is_moved():
    assert Moving(checkpoint_s=0.0).kept_s(100.0) == 100.0
    assert Moving(checkpoint_s=600.0).kept_s(1500.0) == 1200.0
    assert Moving(checkpoint_s=math.inf).kept_s(1500.0) == 0.0
    assert settings_for(MOVING[HALF_HOUR]).lost_s == 1800.0


@pytest.mark.slow
def test_emptying_nodes_saves_energy_and_every_job_still_ends():
    week = judge(Load.OFFICE, 2, days=1, cases=(HALF_HOUR,))
    emptied = week.emptied[HALF_HOUR]
    assert emptied.moves > 0
    assert emptied.redone_pct > 0.0
    assert emptied.unfinished <= week.without.unfinished
    assert (week.without.moves, week.without.redone_pct) == (0, 0.0)
    compared = summarise([week]).compared["office"][HALF_HOUR]
    assert compared.energy_pct.mean < 0.0
