"""Runs of experiments on a control plane, without one: their pace, the programs' settings, what becomes of results."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from joulie.adapters.kubernetes.resources import NODES
from joulie.adapters.kubernetes.wire import decode_object
from joulie.apps.operator.settings import OperatorSettings
from joulie.domain.grid.series import Series
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.program.settings import settings_from
from joulie_lab.apps.experiment.control_plane import ControlPlaneRunError, run_on_control_plane, why_too_fast
from joulie_lab.apps.experiment.control_plane.pace import max_time_scale, operator_variables, seconds, why_too_slow
from joulie_lab.apps.experiment.control_plane.runner import _may_run, weighted_kwh, why_not
from joulie_lab.apps.experiment.control_plane.site import _is_settled, node_object
from joulie_lab.apps.simulator.cluster import simulated_node
from joulie_lab.simulation.experiment.files import load_experiment
from joulie_lab.simulation.experiment.outcome import Outcome, OutcomeSeries, Pace
from joulie_lab.simulation.experiment.plan import PhysicsChoice
from joulie_lab.simulation.experiment.scenario import ControlTimes, Variant
from joulie_lab.simulation.native.nodes import sim_nodes

TIMES = ControlTimes(operator_s=60.0, agent_s=20.0)
KUBE = Variant(name="A", joulie=False, scheduler="kube")


def test_the_operators_times_are_those_of_the_clock() -> None:
    variant = Variant(name="B", operator={"POLICY_TYPE": "static_partition", "DRAIN_SETTLING": "1m"})
    variables = operator_variables(variant, TIMES, 20.0)
    settings = settings_from(OperatorSettings, variables)
    assert variables["POLICY_TYPE"] == "static_partition"
    assert settings.reconcile_interval_s == 3.0
    assert settings.control.drain.settling_s == 3.0
    assert settings.control.drain.timeout_s == 90.0
    assert settings.trend_window_s == 15.0
    # What guards against dead programs is no part of the control.
    assert settings.twin_staleness_s == 30.0


def test_settings_are_good_at_every_pace_that_is_allowed() -> None:
    for operator_s in (10.0, 20.0, 300.0):
        times = ControlTimes(operator_s=operator_s, agent_s=10.0)
        settings_from(OperatorSettings, operator_variables(Variant(name="B"), times, max_time_scale(41, times)))


def test_a_pace_that_programs_cannot_keep_is_refused_with_the_one_that_they_can() -> None:
    assert why_too_fast(41, TIMES, 60.0) is None
    assert "at most 97" in str(why_too_fast(41, TIMES, 120.0))
    assert max_time_scale(5000, TIMES) < 1.0


def test_a_run_that_the_machine_could_not_keep_up_with_does_not_count() -> None:
    assert why_too_slow(Pace(mean_s=0.5, p99_s=1.5), TIMES, 40.0) is None
    assert "on average the simulator updated the cluster every 24.0 s" in str(why_too_slow(Pace(0.6, 1.5), TIMES, 40.0))
    late = str(why_too_slow(Pace(0.5, 2.0), TIMES, 40.0))
    assert "at the 99th percentile the simulator updated the cluster every 80.0 s" in late
    assert "the operator acts every 60 s; lower --time-scale" in late
    assert "never updated" in str(why_too_slow(None, TIMES, 40.0))


@pytest.mark.parametrize(
    ("states", "may_run"),
    [
        ({}, False),
        ({"huge": "submitted"}, False),
        ({"huge": "refused", "late": "submitted"}, True),
        ({"huge": "submitted", "late": "submitted"}, True),
    ],
)
def test_a_run_is_not_cut_short_while_a_pod_may_still_get_a_node(states: dict[str, str], may_run: bool) -> None:
    class Answers:
        def get(self, _url: str) -> dict[str, Any]:
            return {"jobs": [{"jobId": name, "state": state} for name, state in states.items()]}

    site: Any = Answers()
    submitted = sum(state == "submitted" for state in states.values())
    assert _may_run(site, "", submitted, {"huge"}) is may_run


@pytest.mark.parametrize(
    ("cpu", "gpu", "settled"),
    [
        ("applied", "applied", True),
        ("applied", "none", True),
        ("applied", "error", False),
        ("applied", None, False),
        ("none", "none", False),
    ],
)
def test_time_begins_with_all_caps_in_force(cpu: str, gpu: str | None, settled: bool) -> None:
    control = {"cpu": {"result": cpu}} | ({"gpu": {"result": gpu}} if gpu else {})
    twin = {"spec": {}, "status": {"schedulableClass": "eco", "controlStatus": control}}
    assert _is_settled(twin) is settled


@pytest.mark.parametrize(("value_s", "text"), [(3.0, "3s"), (0.25, "0.25s"), (1 / 3, "0.333333s"), (0.0, "0s")])
def test_durations_are_written_as_settings_are(value_s: float, text: str) -> None:
    assert seconds(value_s) == text


def test_what_a_control_plane_cannot_do_is_said_before_it_starts(tmp_path: Path) -> None:
    experiment = load_experiment("quick")
    fgd = Variant(name="F", joulie=False, scheduler="fgd")
    assert "natively only" in str(why_not(experiment, fgd))
    assert why_not(experiment, KUBE) is None
    tuned = load_experiment("quick", sets=("cooling={linear: {rated_it_w: 1000}}",))
    assert "natively only" in str(why_not(tuned, KUBE))
    with pytest.raises(ControlPlaneRunError, match="variant F: scheduler fgd"):
        run_on_control_plane(
            experiment, fgd, 1, PhysicsChoice(), time_scale=1.0, folder=tmp_path / "run", progress=lambda *_: None
        )
    assert not (tmp_path / "run").exists()


def test_nodes_are_on_the_control_plane_what_they_are_natively() -> None:
    for node in sim_nodes(load_experiment("hetero-41").cluster.groups):
        seen = decode_object(NODES, json.dumps(node_object(node)).encode())
        found = simulated_node(seen, BUILTIN_CATALOGUE)
        assert found.spec == node.spec
        assert found.capacity is not None
        assert found.capacity.gpu_resource == node.gpu_resource
        assert found.capacity.memory_gib == node.memory_gib


def test_emissions_follow_the_power_and_the_exact_energy() -> None:
    nothing = np.zeros(2, dtype=np.int64)
    series = OutcomeSeries(
        np.array([0.0, 1800.0]), np.array([1000.0, 3000.0]), np.zeros(2), np.full(2, 295.0), *[nothing] * 7
    )
    outcome = Outcome(3600.0, 2.2 * 3.6e6, None, (), (), (), series)
    intensity = Series([0.0, 1800.0], [100.0, 200.0], 3600.0)
    assert weighted_kwh(outcome, intensity) == pytest.approx(2.2 * 175.0)
