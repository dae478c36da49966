"""Demand that is given to the simulator second by second."""

import numpy as np
import pytest

from joulie_lab.apps.simulator.api import Api
from joulie_lab.apps.simulator.demand import Demand, DemandError, DemandPlay
from joulie_lab.apps.simulator.main import build_world
from joulie_lab.apps.simulator.settings import SimulatorSettings
from joulie_lab.apps.simulator.world import Place
from joulie_lab.benchmarks.feeds import server
from joulie_lab.simulation.live.nodes import NodeSpec

_ = Api
SHARE = np.array([[0.2, 0.2], [1.0, 0.2], [1.0, 0.2]])


def playing(share=SHARE, lost=None):
    world = build_world(SimulatorSettings(cooling="none"))
    spec = server()
    nodes = {NodeSpec(name, spec.cpu, spec.sockets, spec.cores, spec.gpu, spec.gpus): Place() for name in "ab"}
    world.set_nodes(nodes)
    world.demand = DemandPlay(Demand(("b", "a"), share, np.zeros(share.shape, dtype=bool) if lost is None else lost))
    return world


def test_nodes_follow_their_demand_whatever_the_steps():
    one, many = playing(), playing()
    one.step(3.0)
    for _ in range(12):
        many.step(0.25)
    for world in (one, many):
        power_w = np.array(world.demand.power_w)
        assert power_w.shape == (3, 2)
        assert power_w[1:, 0] == pytest.approx(6417.0, abs=1.0)
        assert (power_w[:, 1] < 3000.0).all()
        assert np.array(world.demand.rate) == pytest.approx(1.0)
    assert np.array(one.demand.power_w) == pytest.approx(np.array(many.demand.power_w))


def test_a_limit_shows_in_power_rate_and_limit():
    world = playing()
    world.control("b", "gpu.set_power_cap_watts", {"capWattsPerGpu": 350.0})
    world.step(10.0)
    assert world.demand.power_w[-1][0] < 4000.0
    assert world.demand.rate[-1][0] < 0.9
    assert world.demand.limit_w[-1].tolist() == [350.0, 700.0]
    assert world.demand.rate[-1][1] == pytest.approx(1.0)


def test_telemetry_is_lost_when_it_is_said_to_be():
    lost = np.zeros(SHARE.shape, dtype=bool)
    lost[1, 0] = True
    world = playing(lost=lost)
    assert [world.readable(node) for node in "ab"] == [True, True]
    world.step(1.5)
    assert [world.readable(node) for node in "ab"] == [True, False]
    world.step(1.0)
    assert [world.readable(node) for node in "ab"] == [True, True]


def test_without_its_nodes_no_demand_is_played():
    world = playing()
    world.demand = DemandPlay(Demand(("gone",), np.ones((1, 1)), np.zeros((1, 1), dtype=bool)))
    world.step(2.0)
    assert world.demand.power_w == []


def test_a_file_is_read_as_written_and_a_broken_one_is_refused(tmp_path):
    demand = Demand(("a", "b"), SHARE, SHARE > 0.5)
    demand.write(tmp_path / "demand.npz")
    read = Demand.read(tmp_path / "demand.npz")
    assert (read.nodes, read.share.tolist(), read.lost.tolist()) == (("a", "b"), SHARE.tolist(), demand.lost.tolist())
    (tmp_path / "broken.npz").write_text("no arrays")
    for path in (tmp_path / "broken.npz", tmp_path / "missing.npz"):
        with pytest.raises(DemandError):
            Demand.read(path)
    for share in (SHARE * 2.0, SHARE[:, :1], SHARE[:0]):
        with pytest.raises(ValueError, match="demand"):
            Demand(("a", "b"), share, np.zeros(share.shape, dtype=bool))
