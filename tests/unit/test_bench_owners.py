"""What `joulie bench owners` makes of runs: paired by seed, split by cause, of one assumption each."""

from __future__ import annotations

import pytest

from joulie_lab.benchmarks.owners import ASSUMPTIONS, CAUSES, MAIN, SMALL, summarise
from joulie_lab.simulation.experiment.compare import Record
from joulie_lab.simulation.experiment.metrics import metrics
from joulie_lab.simulation.experiment.plan import PhysicsChoice, RunKey, choices
from joulie_lab.simulation.job_response import IdleStates
from support.experiment_outcomes import outcome

pytestmark = pytest.mark.slow

PART = CAUSES["cpu-only-40"]
KWH = {
    "kube": 100.0,
    "halves": 90.0,
    "halves-uncapped": 97.0,
    "queue": 95.0,
    "queue-uncapped": 99.0,
    "energy": 85.0,
    "energy-uncapped": 88.0,
}


def records(physics: PhysicsChoice, kwh: dict[str, float]) -> list[Record]:
    """A run of each variant and seed, the energy a little more from seed to seed."""
    return [
        Record(RunKey(name, seed, physics), metrics(outcome(it_j=(value + place) * 3.6e6, busy_gpu_j=0.0)))
        for place, seed in enumerate(PART.seeds)
        for name, value in kwh.items()
    ]


def test_savings_of_policies_are_split_into_placement_and_caps() -> None:
    experiment = PART.experiment()
    found = summarise(experiment, records(choices(experiment.physics)[0], KWH)).variants
    halves = found["halves"]
    assert halves.saved_by_placement_pct is not None
    assert halves.saved_by_caps_pct is not None
    assert halves.saved_pct.mean == pytest.approx(10.0, rel=0.05)
    assert halves.saved_by_placement_pct.mean == pytest.approx(3.0, rel=0.05)
    assert halves.saved_by_placement_pct.mean + halves.saved_by_caps_pct.mean == pytest.approx(halves.saved_pct.mean)
    assert (found["kube"].saved_by_caps_pct, found["halves-uncapped"].saved_by_caps_pct) == (None, None)
    assert halves.performance_pods_on_eco is not None
    assert halves.performance_pods_on_eco.mean == 0.0


def test_runs_under_another_assumption_in_the_same_folder_are_left_out() -> None:
    experiment = PART.experiment()
    ours, others = choices(experiment.physics)[0], PhysicsChoice(IdleStates.MANAGED)
    assert ours != others
    alone = summarise(experiment, records(ours, KWH))
    assert summarise(experiment, [*records(ours, KWH), *records(others, KWH | {"kube": 200.0})]) == alone


def test_every_part_can_be_loaded_and_has_what_its_tables_compare() -> None:
    for parts in (MAIN, ASSUMPTIONS, CAUSES, SMALL):
        for part in parts.values():
            names = [variant.name for variant in part.experiment().variants]
            assert sorted(names) == sorted(part.variants)
            assert names[0] == "kube"
            assert {name.removesuffix("-uncapped") for name in names} <= set(names)
