"""The benchmarks of power budgets: feeds on a control plane, and a rack through an event."""

import json

import numpy as np
import pytest

from joulie.adapters.kubernetes.api.meta import ObjectMeta
from joulie.adapters.kubernetes.api.v1alpha1 import ControlStatus, NodeTwin, NodeTwinSpec, NodeTwinStatus, Profile
from joulie.adapters.kubernetes.wire import Key
from joulie.apps.cli.main import main
from joulie_lab.apps.bench.feeds_run import Plan, _budgets, _nodes, _pods, _Watched
from joulie_lab.benchmarks import feeds
from joulie_lab.benchmarks.breaker import CASES, demanded, play

pytestmark = pytest.mark.slow

ON = feeds.modelled_feed()


def test_the_modelled_feed_can_be_kept_by_limiting_standard_servers_alone():
    critical, servers = ON.servers.critical, ON.servers
    assert critical.sum() == feeds.CRITICAL
    least_w = servers.full_w[critical].sum() + servers.floor_w[~critical].sum()
    assert 0.93 < least_w / ON.settings.rating_w < 0.95


def test_a_record_of_what_was_played_gives_the_same_figures():
    run = play(CASES["storm"], "static share", 103, 300, ON)
    record = feeds.Record(run.power_w, np.ones(run.power_w.shape))
    again = feeds.recorded(record, run.demand, ON)
    assert np.allclose(again.heat, run.heat)
    assert feeds.figures(again, ON).peak_load == pytest.approx(feeds.figures(run, ON).peak_load)
    assert feeds.figures(again, ON, record.rate).standard_lost_pct == feeds.figures(run, ON).standard_lost_pct > 0.0
    assert feeds.figures(again, ON, record.rate).critical_slowed_pct == 0.0 < feeds.figures(run, ON).critical_slowed_pct


def test_a_recorded_overload_counts_as_a_trip():
    power_w = np.full((300, feeds.SERVERS), ON.servers.full_w[0])
    run = feeds.recorded(feeds.Record(power_w, np.ones(power_w.shape)), np.ones(power_w.shape), ON)
    assert 10 < run.trips[0] < 60
    assert len(run.trips) == 1
    assert feeds.figures(run, ON).over_limit_s == 300 - feeds.WARM_UP_S


def test_records_are_read_as_written(tmp_path):
    one = feeds.PlaneRecord(
        {"storm-blind": feeds.Record(np.ones((3, 2)), np.zeros((3, 2)))}, np.array([1.0, 2.0]), 0.1, {"agent": 3}
    )
    one.write(tmp_path / "plain.npz")
    read = feeds.PlaneRecord.read(tmp_path / "plain.npz")
    assert read.feeds["storm-blind"].power_w.tolist() == np.ones((3, 2)).tolist()
    assert (read.delays_s.tolist(), read.decide_p99_s, dict(read.killed)) == ([1.0, 2.0], 0.1, {"agent": 3})


def test_longest():
    assert [feeds.longest(list(map(bool, one))) for one in ([], [0], [1, 1, 0, 1], [0, 1, 1, 1])] == [0, 0, 2, 3]


def test_the_objects_of_a_run_agree_with_each_other():
    plan = Plan(tuple(CASES), 103, 1.0, ON, kills=True)
    nodes = {one["metadata"]["name"]: one["metadata"]["labels"] for one in _nodes(plan)}
    assert len(nodes) == 5 * feeds.SERVERS
    assert len(list(_pods(plan))) == 5 * feeds.CRITICAL
    assert {one["spec"]["nodeName"] for one in _pods(plan)} <= nodes.keys()
    for budget in _budgets(plan):
        selector = budget["spec"]["nodeSelector"].items()
        assert sum(selector <= labels.items() for labels in nodes.values()) == feeds.SERVERS
        assert budget["spec"]["watts"] <= budget["spec"]["breaker"]["ratedWatts"]
    assert demanded(CASES["storm"], 103, 100, ON)[0].shape == (100, feeds.SERVERS)


def test_a_reaction_counts_from_the_first_change_that_is_not_confirmed():
    def twin(generation, observed):
        return NodeTwin(
            metadata=ObjectMeta(name="a", generation=generation),
            spec=NodeTwinSpec(node_name="a", profile=Profile.PERFORMANCE),
            status=NodeTwinStatus(control_status=ControlStatus(observed_generation=observed)),
        )

    watched = _Watched(counting=True)
    for generation, observed in ((1, 1), (2, 1), (3, 1), (3, 3), (3, 3)):
        watched.on_change(Key("", "a"), twin(generation, observed))
    assert len(watched.delays_s) == 1


def test_small_runs_of_both_commands_hold_their_ranges(tmp_path):
    for name in ("feeds", "rack"):
        with pytest.raises(SystemExit) as caught:
            main(["bench", name, "--small", "--json", str(tmp_path / f"{name}.json")])
        assert caught.value.code == 0, name
    rack = json.loads((tmp_path / "rack.json").read_text(encoding="utf-8"))
    assert rack["budgets"]["feed"]["over_s"] <= rack["response_s"]
