"""Which sources together make the power of a node."""

import numpy as np
import pytest

from joulie.apps.operator.power.columns import Column, SourceColumns, candidates, sources_of
from joulie.domain.control_power import NO_SOURCE, choose_power
from joulie.domain.signal import Reading

NODES = ("cpu", "gpu")
HAS_GPUS = np.array([False, True])
NOW_S, STALE_S = 1000.0, 60.0
NOTHING = Column.of(NODES, {})


def column(**by_node):
    return Column.of(NODES, {node: Reading(*reading) for node, reading in by_node.items()})


def source(name, *, cpu=NOTHING, gpu=NOTHING, whole=NOTHING):
    return SourceColumns(name, cpu, gpu, whole)


def judged(measured=(), gpus=(), estimated=None, model=NOTHING):
    """Source and power of each node, None without any."""
    found = candidates(measured, gpus, estimated or {}, model, HAS_GPUS)
    choice = choose_power([one.readings for one in found], 2, NOW_S, STALE_S)
    return [
        None if index == NO_SOURCE else (choice.sources[index], power_w)
        for index, power_w in zip(choice.source.tolist(), choice.power_w.tolist(), strict=True)
    ]


BOTH = {"cpu": (990.0, 100.0), "gpu": (990.0, 200.0)}
AGENTS_GPU = source("agents", gpu=column(gpu=(990.0, 30.0)))
DCGM = source("dcgm", gpu=column(gpu=(995.0, 40.0)))


def test_a_source_completes_itself_before_others_do():
    http = source("http", cpu=column(**BOTH), gpu=column(gpu=(990.0, 50.0)))
    assert judged([http], [DCGM, http]) == [("http", 100.0), ("http", 250.0)]


def test_cpu_power_is_completed_by_the_best_fresh_gpu_power():
    kepler = source("kepler", cpu=column(**BOTH))
    assert judged([kepler], [AGENTS_GPU, DCGM]) == [("kepler", 100.0), ("kepler+agents", 230.0)]
    silent = source("agents", gpu=column(gpu=(900.0, 30.0)))
    assert judged([kepler], [silent, DCGM]) == [("kepler", 100.0), ("kepler+dcgm", 240.0)]


def test_a_node_with_gpus_that_nobody_measures_is_not_measured():
    kepler = source("kepler", cpu=column(**BOTH))
    assert judged([kepler]) == [("kepler", 100.0), None]
    # The model stands in, after all that measured.
    model = Column(np.full(2, NOW_S), np.array([0.0, 70.0]), np.array([0.0, 50.0]), np.array([0.0, 90.0]))
    assert judged([kepler], model=model)[1] == ("kepler+model", 270.0)
    http = source("http", cpu=column(gpu=(990.0, 1.0)), gpu=column(gpu=(990.0, 2.0)))
    assert judged([kepler, http], [http], model=model)[1] == ("kepler+http", 202.0)


def test_trap_a_missing_gpu_is_not_a_gpu_of_zero_watts():
    kepler = source("kepler", cpu=column(**BOTH), gpu=column(gpu=(990.0, 0.0)))
    assert judged([kepler])[1] == ("kepler", 200.0)
    assert judged([source("kepler", cpu=column(**BOTH))])[1] is None


def test_a_sum_is_as_old_as_its_older_part():
    kepler = source("kepler", cpu=column(**BOTH))
    old = source("dcgm", gpu=column(gpu=(NOW_S - STALE_S - 1.0, 40.0)))
    assert judged([kepler], [old])[1] is None


def test_an_estimate_never_goes_before_a_measurement():
    static = Column(np.full(2, NOW_S), np.full(2, 5.0), np.full(2, 4.0), np.full(2, 6.0))
    late = source("http", cpu=column(cpu=(950.0, 100.0)))
    assert judged([late], estimated={"cadvisor": static}, model=static) == [("http", 100.0), ("cadvisor", 10.0)]
    assert judged([late], [DCGM], {"cadvisor": static}, static)[1] == ("cadvisor+dcgm", 45.0)


def test_power_of_whole_nodes_is_not_completed_but_divided():
    query = source("prometheus", whole=column(**BOTH))
    assert judged([query]) == [("prometheus", 100.0), ("prometheus", 200.0)]
    assert judged([query], [DCGM]) == [("prometheus", 100.0), ("prometheus+dcgm", 200.0)]
    parts, whole, *_ = candidates([query], [DCGM], {}, NOTHING, HAS_GPUS)
    assert (parts.cpu.power_w[1], parts.gpu.power_w[1]) == (160.0, 40.0)
    # Without GPUs, the whole is the CPU part.
    assert whole.cpu.power_w.tolist()[0] == 100.0
    assert np.isnan(whole.cpu.power_w[1])
    hungry = source("dcgm", gpu=column(gpu=(990.0, 201.0)))
    assert judged([query], [hungry])[1] == ("prometheus", 200.0)


def test_an_interval_is_that_of_the_estimated_part():
    kepler = source("kepler", cpu=column(**BOTH))
    model = Column(np.full(2, NOW_S), np.array([0.0, 70.0]), np.array([0.0, 50.0]), np.array([0.0, 90.0]))
    (total,) = (one.total for one in candidates([kepler], [], {}, model, HAS_GPUS) if one.name == "kepler+model")
    assert (total.low_w[1], total.power_w[1], total.high_w[1]) == (250.0, 270.0, 290.0)


def test_samples_of_what_is_down_age_faster():
    both, one = np.array([True, True]), np.array([False, True])
    assert column(**BOTH).without_stale(995.0, both).time_s.tolist() == [0.0, 0.0]
    assert column(**BOTH).without_stale(995.0, one).time_s.tolist() == [990.0, 0.0]
    assert column(**BOTH).without_stale(985.0, both).time_s.tolist() == [990.0, 990.0]


@pytest.mark.parametrize(
    ("name", "expected"), [("kepler", ("kepler", "kepler")), ("node-exporter+dcgm", ("node-exporter", "dcgm"))]
)
def test_a_candidate_names_its_sources(name, expected):
    assert sources_of(name) == expected
