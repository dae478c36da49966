"""Exporters' series, as Kepler, node_exporter, dcgm-exporter and cAdvisor label them, good and hostile."""

import math
import re

import pytest

from joulie.adapters.prometheus.cadvisor import Cadvisor
from joulie.adapters.prometheus.dcgm import Dcgm
from joulie.adapters.prometheus.kepler import Kepler
from joulie.adapters.prometheus.node_exporter import NodeExporter
from joulie.adapters.prometheus.nodes import NodeIndex
from joulie.adapters.prometheus.platform import Platform
from joulie.adapters.prometheus.readings import GpuDevice, GpuUse, PodPower, Rejection
from joulie.domain.profiles.profile import EnergyUse
from joulie.domain.signal import Reading
from support.prometheus_answers import NOW_S, asked_of, counter, matrix, vector

INDEX = NodeIndex.from_aliases({"n1": ["10.0.0.1"], "n10": ["10.0.0.10"]})
WINDOW_S = 120


def watts(readings):
    return {node: pytest.approx(reading.value) for node, reading in readings.items()}


# ---- node_exporter


def rapl(index, *, part="package", path="intel-rapl", instance="10.0.0.1:9100"):
    return {
        "__name__": f"node_rapl_{part}_joules_total",
        "index": str(index),
        "path": f"/host/sys/class/powercap/{path}:{index}",
        "instance": instance,
        "job": "node-exporter",
    }


def rapl_power(*series):
    return asked_of({"rapl": matrix(*series)}, lambda prometheus: NodeExporter(prometheus, WINDOW_S).nodes(INDEX))[0]


def test_packages_are_summed_and_memory_kept_apart():
    power = rapl_power(
        counter(rapl(0), 90.0), counter(rapl(1), 60.0), counter(rapl(0, part="dram", path="intel-rapl:0"), 8.0)
    )
    assert power.cpu == {"n1": Reading(NOW_S, pytest.approx(150.0))}
    assert power.cpu_count == {"n1": 2}
    assert watts(power.dram) == {"n1": 8.0}
    assert (power.gpu, power.rejected) == ({}, {})


def test_one_query_asks_for_packages_and_memory_of_all_nodes_and_nothing_that_overlaps():
    _, queries = asked_of({}, lambda prometheus: NodeExporter(prometheus, WINDOW_S).nodes(INDEX))
    assert len(queries) == 1
    assert queries[0].endswith("[120s]")
    assert "psys" not in queries[0]
    assert "core" not in queries[0]


def test_trap_packages_are_not_counted_twice_through_mmio():
    power = rapl_power(counter(rapl(0), 90.0), counter(rapl(0, path="intel-rapl-mmio"), 90.0))
    assert (watts(power.cpu), power.cpu_count) == ({"n1": 90.0}, {"n1": 1})
    assert power.rejected == {Rejection.DUPLICATE: 1}


def test_a_node_that_has_only_mmio_is_measured_by_it():
    assert watts(rapl_power(counter(rapl(0, path="intel-rapl-mmio"), 40.0)).cpu) == {"n1": 40.0}


def test_dies_are_zones_of_their_own():
    dies = [
        dict(rapl(0), __name__=f"node_rapl_package_{package}_die_{die}_joules_total")
        for package in "01"
        for die in "01"
    ]
    power = rapl_power(*(counter(die, 50.0) for die in dies))
    assert (watts(power.cpu), power.cpu_count) == ({"n1": 200.0}, {"n1": 4})


def test_a_second_scrape_and_the_previous_run_of_an_exporter_count_once():
    second = dict(rapl(0), job="node-exporter-too")
    before = dict(rapl(0), pod="node-exporter-old")
    power = rapl_power(
        counter(rapl(0), 90.0, ages=(50, 35, 20, 5)), counter(second, 91.0), counter(before, 70.0, ages=(110, 95, 80))
    )
    assert watts(power.cpu) == {"n1": 91.0}
    assert power.rejected == {Rejection.DUPLICATE: 2}


def test_an_exporter_started_anew_is_bridged_by_its_previous_run():
    before, after = dict(rapl(0), pod="old"), dict(rapl(0), pod="new")
    power = rapl_power((after, [(0, 5.0)]), counter(before, 70.0, ages=(60, 45, 30)))
    assert power.cpu == {"n1": Reading(NOW_S - 30, pytest.approx(70.0))}


def test_a_node_of_which_one_package_cannot_be_read_is_missing():
    for broken in (
        (rapl(1), [(30, math.nan), (0, math.inf)]),
        (rapl(1), [(0, 5.0)]),
        (rapl(1), [(30, -5.0), (0, 1.0)]),
        counter(rapl(1), 1e9),
    ):
        power = rapl_power(counter(rapl(0), 90.0), broken)
        assert power.cpu == {}
        assert power.cpu_count == {}
        assert sum(power.rejected.values()) == 1


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ([(30, math.nan), (0, math.inf)], Rejection.NOT_FINITE),
        ([(0, 5.0)], Rejection.TOO_FEW),
        ([(30, 5.0), (0, 1.0)], Rejection.TOO_FEW),  # started anew in between
        ([(30, -5.0), (0, 1.0)], Rejection.NEGATIVE),
        ([(30, 0.0), (0, 9e14)], Rejection.ABSURD),
    ],
)
def test_every_series_that_is_left_out_is_counted(samples, reason):
    power = rapl_power((rapl(0), samples))
    assert (power.cpu, power.rejected) == ({}, {reason: 1})


def test_trap_a_reset_is_no_absurd_power():
    ages = (60, 45, 30, 15, 0)
    values = [9e8, 9e8 + 1500, 9e8 + 3000, 40.0, 1540.0]
    power = rapl_power((rapl(0), list(zip(ages, values, strict=True))))
    assert watts(power.cpu) == {"n1": 100.0}


def test_a_package_that_fell_silent_makes_the_node_as_old_as_it():
    power = rapl_power(counter(rapl(0), 90.0), counter(rapl(1), 60.0, ages=(110, 95)))
    assert power.cpu == {"n1": Reading(NOW_S - 95, pytest.approx(150.0))}


def test_trap_node_1_is_not_node_10_and_strangers_are_nobody():
    power = rapl_power(
        counter(rapl(0, instance="10.0.0.1:9100"), 90.0),
        counter(rapl(0, instance="10.0.0.10:9100"), 30.0),
        counter(rapl(0, instance="10.0.0.100:9100"), 1000.0),
    )
    assert watts(power.cpu) == {"n1": 90.0, "n10": 30.0}
    assert power.rejected == {Rejection.UNKNOWN_NODE: 1}


def test_a_flood_of_packages_is_absurd_and_takes_no_memory():
    flood = [counter(dict(rapl(0), index=f"{number}" + "x" * 1000), 100.0) for number in range(1000)]
    power = rapl_power(*flood, counter(rapl(0, instance="10.0.0.10:9100"), 30.0))
    assert watts(power.cpu) == {"n10": 30.0}
    assert power.rejected == {Rejection.ABSURD: 1000 - 64}


# ---- Kepler


def old_node(part, mode, package="0", node="n1"):
    return {
        "__name__": f"kepler_node_{part}_joules_total",
        "package": package,
        "exported_instance": node,
        "instance": "10.244.0.7:9102",
        "mode": mode,
    }


def new_node(zone, path="intel-rapl:0", *, active=False, node="n1"):
    return {
        "__name__": f"kepler_node_cpu_{'active_' if active else ''}joules_total",
        "zone": zone,
        "path": path,
        "node_name": node,
        "instance": "10.244.0.7:28282",
    }


def kepler_power(*series):
    answers = {"kepler_node": matrix(*series)}
    found, queries = asked_of(answers, lambda prometheus: Kepler(prometheus, WINDOW_S).nodes(INDEX))
    assert len(queries) == 1
    return found


def test_old_kepler_has_modes_that_add_up():
    power = kepler_power(
        *(
            counter(old_node("package", mode, package), rate)
            for mode, rate in (("dynamic", 50), ("idle", 30))
            for package in "01"
        ),
        counter(old_node("dram", "dynamic"), 5.0),
        counter(old_node("dram", "idle"), 3.0),
        *(
            counter(old_node("gpu", mode, gpu), rate)
            for mode, rate in (("dynamic", 200), ("idle", 60))
            for gpu in "0123"
        ),
    )
    assert (watts(power.cpu), power.cpu_count, watts(power.cpu_dynamic)) == ({"n1": 160.0}, {"n1": 2}, {"n1": 100.0})
    assert watts(power.dram) == {"n1": 8.0}
    assert (watts(power.gpu), power.gpu_count) == ({"n1": 1040.0}, {"n1": 4})
    assert power.rejected == {}


def test_without_idle_power_there_is_no_power_of_the_node():
    power = kepler_power(counter(old_node("package", "dynamic"), 50.0))
    assert (power.cpu, watts(power.cpu_dynamic)) == ({}, {"n1": 50.0})
    half = kepler_power(
        counter(old_node("package", "dynamic"), 50.0),
        counter(old_node("package", "dynamic", "1"), 50.0),
        counter(old_node("package", "idle"), 30.0),
    )
    assert half.cpu == {}


def test_the_first_kepler_had_no_modes():
    labels = old_node("package", "")
    del labels["mode"]
    assert watts(kepler_power(counter(labels, 80.0)).cpu) == {"n1": 80.0}


def test_new_kepler_has_zones_that_overlap_and_are_not_summed():
    power = kepler_power(
        counter(new_node("package"), 100.0),
        counter(new_node("dram"), 10.0),
        counter(new_node("package", active=True), 60.0),
    )
    assert (watts(power.cpu), power.cpu_count, watts(power.cpu_dynamic)) == ({"n1": 100.0}, {"n1": 1}, {"n1": 60.0})
    assert watts(power.dram) == {"n1": 10.0}


def test_the_query_leaves_overlapping_zones_to_the_server():
    _, (query,) = asked_of({}, lambda prometheus: Kepler(prometheus, WINDOW_S).nodes(INDEX))
    assert 'zone!~"(core|uncore|psys|ecore).*"' in query


def test_new_keplers_packages_over_mmio_count_once():
    power = kepler_power(
        counter(new_node("package", "/sys/class/powercap/intel-rapl:0"), 100.0),
        counter(new_node("package", "/sys/class/powercap/intel-rapl-mmio:0"), 100.0),
        counter(new_node("package", "/sys/class/powercap/intel-rapl:1"), 90.0),
    )
    assert (watts(power.cpu), power.cpu_count) == ({"n1": 190.0}, {"n1": 2})


def test_sockets_that_kepler_has_added_up_have_no_count():
    power = kepler_power(counter(new_node("package", "aggregated-package"), 300.0))
    assert (watts(power.cpu), power.cpu_count) == ({"n1": 300.0}, {})


def test_gpus_of_new_kepler_are_gauges():
    gpus = [
        {"__name__": "kepler_node_gpu_watts", "gpu": str(gpu), "gpu_uuid": f"GPU-{gpu}", "node_name": "n1"}
        for gpu in range(2)
    ]
    stranger = dict(gpus[0], node_name="n2")
    power = kepler_power(*((labels, [(15, 200.0), (0, 300.0)]) for labels in (*gpus, stranger)))
    assert (power.gpu, power.gpu_count) == ({"n1": Reading(NOW_S, 600.0)}, {"n1": 2})
    assert power.rejected == {Rejection.UNKNOWN_NODE: 1}


def new_gpu(metric, gpu, node="n1"):
    return {"__name__": f"kepler_node_gpu_{metric}", "gpu": str(gpu), "gpu_uuid": f"GPU-{gpu}", "node_name": node}


def test_g21_the_gpu_counters_of_kepler_0_11_4_are_counters_of_single_gpus():
    counters = [counter(new_gpu("joules_total", gpu), rate) for gpu, rate in enumerate((120.0, 340.0))]
    gauges = [(new_gpu("watts", gpu), [(15, value), (0, value)]) for gpu, value in enumerate((100.0, 220.0))]
    power = kepler_power(*counters, *gauges)
    assert (watts(power.gpu), power.gpu_count, power.rejected) == ({"n1": 320.0}, {"n1": 2}, {})
    # The gauge of one GPU cannot be read: the counters say what both draw.
    power = kepler_power(*counters, gauges[0], (new_gpu("watts", 1), [(15, math.nan), (0, math.nan)]))
    assert (watts(power.gpu), power.gpu_count) == ({"n1": 460.0}, {"n1": 2})
    assert power.rejected == {Rejection.NOT_FINITE: 1}
    # Neither metric knows both GPUs.
    power = kepler_power(counters[0], gauges[0], (new_gpu("watts", 1), [(0, math.nan)]), (counters[1][0], []))
    assert power.gpu == {}


def test_g22_the_packages_of_keplers_hwmon_backend_are_packages():
    power = kepler_power(
        counter(new_node("esocket0", "/sys/class/hwmon/hwmon3/energy65_input"), 100.0),
        counter(new_node("esocket1", "/sys/class/hwmon/hwmon3/energy66_input"), 80.0),
        counter(new_node("esocket0", "/sys/class/hwmon/hwmon3/energy65_input", active=True), 60.0),
        counter(new_node("esocket1", "/sys/class/hwmon/hwmon3/energy66_input", active=True), 50.0),
    )
    assert (watts(power.cpu), power.cpu_count, watts(power.cpu_dynamic)) == ({"n1": 180.0}, {"n1": 2}, {"n1": 110.0})
    assert power.rejected == {}
    _, (query,) = asked_of({}, lambda prometheus: Kepler(prometheus, WINDOW_S).nodes(INDEX))
    (left_out,) = re.findall(r'zone!~"(.*?)"', query)
    assert not any(re.fullmatch(left_out, zone) for zone in ("", "package", "package-0", "dram", "esocket0", "socket1"))
    assert all(re.fullmatch(left_out, zone) for zone in ("core", "uncore", "psys", "ecore012"))


def test_g22_other_zones_are_no_package_and_are_counted():
    power = kepler_power(
        counter(new_node("cpu_power", "/sys/class/hwmon/hwmon1/power1_input"), 70.0),
        counter(new_node("ppt", "/sys/class/hwmon/hwmon2/power1_average"), 30.0),
    )
    assert (power.cpu, power.dram, power.rejected) == ({}, {}, {Rejection.OTHER_ZONE: 2})
    _, queries = asked_of(KEPLER_PODS, lambda prometheus: Kepler(prometheus, WINDOW_S).pods())
    assert 'zone=~"package.*|e?socket[0-9]*"' in queries[0]


def platform_entry(name="Server Power Control", node="n1", bmc="bmc-1", chassis="System.Embedded.1"):
    return {
        "__name__": "kepler_platform_watts",
        "source": "redfish",
        "node_name": node,
        "bmc_id": bmc,
        "chassis_id": chassis,
        "power_control_id": "PC1",
        "power_control_name": name,
    }


def platform_power(*series):
    answers = {"kepler_platform": matrix(*series)}
    return asked_of(answers, lambda prometheus: Platform(prometheus, WINDOW_S).nodes(INDEX))[0]


def test_g16_the_power_of_a_server_is_its_largest_entry_and_no_sum():
    power = platform_power(
        (platform_entry(), [(30, 440.0), (0, 450.5)]),
        (platform_entry("CPU Sub-system Power"), [(30, 85.0), (0, 85.2)]),
        (platform_entry("Enclosure Power Control", chassis="Enclosure.Internal.0-1"), [(0, 125.3)]),
    )
    assert power.whole == {"n1": Reading(NOW_S, 450.5)}
    assert (power.cpu, power.gpu, power.rejected) == ({}, {}, {})
    # Where the server's own entry cannot be read, a part of it does not stand for the whole.
    power = platform_power((platform_entry(), [(0, math.nan)]), (platform_entry("CPU Sub-system Power"), [(0, 85.0)]))
    assert (power.whole, power.rejected) == ({}, {Rejection.NOT_FINITE: 1})


def test_g16_a_meter_that_nodes_share_is_none_of_a_node():
    power = platform_power(
        (platform_entry(node="n1", bmc="bmc-2"), [(0, 900.0)]), (platform_entry(node="n10", bmc="bmc-2"), [(0, 900.0)])
    )
    assert (power.whole, power.rejected) == ({}, {Rejection.SHARED: 2})


def test_g16_opentelemetrys_hosts_are_servers_by_energy_then_power():
    host = {"hw_id": "server", "host_name": "n1", "job": "hardware"}
    joules, watt = ({"__name__": f"hw_host_{name}", **host} for name in ("energy_joules_total", "power_watts"))
    assert platform_power((watt, [(0, 500.0)])).whole == {"n1": Reading(NOW_S, 500.0)}
    assert watts(platform_power((watt, [(0, 500.0)]), counter(joules, 480.0)).whole) == {"n1": 480.0}
    stranger, absurd = {**watt, "host_name": "n2"}, {**watt, "host_name": "n10"}
    power = platform_power((stranger, [(0, 500.0)]), (absurd, [(0, 1e6)]))
    assert power.rejected == {Rejection.UNKNOWN_NODE: 1, Rejection.ABSURD: 1}


def test_while_kepler_is_upgraded_the_newer_family_counts():
    power = kepler_power(
        counter(old_node("package", "dynamic"), 50.0, ages=(100, 85, 70)),
        counter(old_node("package", "idle"), 30.0, ages=(100, 85, 70)),
        counter(new_node("package"), 85.0, ages=(30, 15, 0)),
    )
    assert power.cpu == {"n1": Reading(NOW_S, pytest.approx(85.0))}


KEPLER_PODS = {
    "kepler_container_package": vector(
        ({"container_namespace": "default", "pod_name": "old"}, 40.0),
        ({"pod_namespace": "default", "pod_name": "new"}, 25.0),
        ({"container_namespace": "default", "pod_name": "absurd"}, 1e9),
        ({"container_namespace": "default", "pod_name": "nan"}, math.nan),
        ({"container_namespace": "default", "pod_name": "x" * 10_000}, 1.0),
        ({"container_namespace": "default"}, 1.0),
    ),
    "kepler_container_dram": vector(({"container_namespace": "default", "pod_name": "old"}, 2.0)),
    "kepler_container_gpu": vector(({"pod_namespace": "default", "pod_name": "new"}, 250.0)),
}


def test_pods_of_both_families_and_one_query_a_part():
    found, queries = asked_of(KEPLER_PODS, lambda prometheus: Kepler(prometheus, WINDOW_S).pods())
    assert found == {("default", "old"): PodPower(40.0, 2.0, None), ("default", "new"): PodPower(25.0, None, 250.0)}
    assert len(queries) == 3


def test_energy_of_pods_over_a_window():
    found, queries = asked_of(KEPLER_PODS, lambda prometheus: Kepler(prometheus, WINDOW_S).energy(600.0))
    assert found == {
        ("default", "old"): EnergyUse(24_000.0, 1200.0, None),
        ("default", "new"): EnergyUse(15_000.0, None, 150_000.0),
    }
    assert all("[600s]" in query for query in queries)


# ---- DCGM


def gpu(number, metric="DCGM_FI_DEV_POWER_USAGE", *, pod=None, mig=None, node="n1", **labels):
    return {
        "__name__": metric,
        "gpu": str(number),
        "UUID": f"GPU-{number}",
        "device": f"nvidia{number}",
        "modelName": "NVIDIA H100 80GB HBM3",
        "Hostname": node,
        "job": "dcgm",
        "instance": "10.244.0.9:9400",
        **({"GPU_I_ID": mig, "GPU_I_PROFILE": "1g.10gb"} if mig else {}),
        **({"namespace": "default", "pod": pod, "container": "main"} if pod else {}),
        **labels,
    }


def gauge(labels, value, age_s=0):
    return labels, [(age_s + 15, value), (age_s, value)]


def dcgm_devices(*series, targets=()):
    answers = {"up and": vector(*targets), "DCGM": matrix(*series)}
    return asked_of(answers, lambda prometheus: Dcgm(prometheus, WINDOW_S).devices(INDEX))[0]


def dcgm_power(*series):
    return asked_of({"DCGM": matrix(*series)}, lambda prometheus: Dcgm(prometheus, WINDOW_S).nodes(INDEX))[0]


def test_gpus_of_a_node_are_summed_by_uuid():
    power = dcgm_power(
        gauge(gpu(0), 300.0), gauge(gpu(1), 100.0), gauge(gpu(0, node="n10"), 70.0), gauge(gpu(9, node="x"), 1.0)
    )
    assert power.gpu == {"n1": Reading(NOW_S, 400.0), "n10": Reading(NOW_S, 70.0)}
    assert power.gpu_count == {"n1": 2, "n10": 1}
    assert power.rejected == {Rejection.UNKNOWN_NODE: 1}


def test_mig_instances_and_shared_gpus_repeat_the_power_of_the_whole():
    power = dcgm_power(
        *(gauge(gpu(0, mig=str(instance)), 200.0) for instance in range(7, 14)),
        gauge(gpu(1, pod="a"), 150.0),
        gauge(gpu(1, pod="b"), 150.0),
    )
    assert (power.gpu, power.gpu_count, power.rejected) == ({"n1": Reading(NOW_S, 350.0)}, {"n1": 2}, {})


@pytest.mark.parametrize("blank", [9223372036854775792.0, 140737488355328.0])
def test_dcgms_blank_values_are_no_power(blank):
    power = dcgm_power(gauge(gpu(0), 300.0), gauge(gpu(1), blank))
    assert (power.gpu, power.rejected) == ({}, {Rejection.ABSURD: 1})


def test_a_gpu_without_a_name_or_with_a_novel_for_one():
    nameless, novel = gpu(0, UUID=""), gpu(0, UUID="GPU-" + "x" * 100_000)
    assert dcgm_power(gauge(nameless, 1.0), gauge(novel, 1.0)).rejected == {Rejection.ABSURD: 2}
    assert dcgm_devices(gauge(nameless, 1.0), gauge(novel, 1.0)) == []


def test_devices_with_power_use_and_holder():
    found = dcgm_devices(
        gauge(gpu(0, pod="train"), 300.0),
        gauge(gpu(0, "DCGM_FI_DEV_GPU_UTIL", pod="train"), 92.0),
        gauge(gpu(0, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", pod="train"), 0.5),
        gauge(gpu(1), 60.0),
    )
    assert found == [
        GpuDevice("n1", "GPU-0", None, None, Reading(NOW_S, 300.0), 92.0, (("default", "train"),), False),
        GpuDevice("n1", "GPU-1", None, None, Reading(NOW_S, 60.0), None, (), False),
    ]


def test_mig_instances_are_devices_with_activity_of_their_own():
    found = dcgm_devices(
        gauge(gpu(0, mig="7", pod="a"), 200.0),
        gauge(gpu(0, mig="8"), 200.0),
        gauge(gpu(0), 200.0),
        gauge(gpu(0, "DCGM_FI_DEV_GPU_UTIL", mig="7", pod="a"), 99.0),
        gauge(gpu(0, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", mig="7", pod="a"), 0.25),
    )
    assert found == [
        GpuDevice("n1", "GPU-0", "7", "1g.10gb", Reading(NOW_S, 200.0), 25.0, (("default", "a"),), False),
        GpuDevice("n1", "GPU-0", "8", "1g.10gb", Reading(NOW_S, 200.0), None, (), False),
    ]


def test_pods_that_share_a_gpu_hold_it_together():
    (found,) = dcgm_devices(gauge(gpu(0, pod="b"), 200.0), gauge(gpu(0, pod="a"), 200.0))
    assert (found.holders, found.shared) == ((("default", "a"), ("default", "b")), True)


def test_a_gpu_that_changed_hands_belongs_to_the_one_who_has_it_now():
    (found,) = dcgm_devices(gauge(gpu(0, pod="before"), 300.0, age_s=60), gauge(gpu(0, pod="now"), 100.0))
    assert (found.holders, found.shared, found.power_w.value) == ((("default", "now"),), False, 100.0)


def test_trap_a_free_gpu_is_not_held_by_the_exporters_own_pod():
    own = {"namespace": "gpu-operator", "pod": "dcgm-exporter-x"}
    target = ({"__name__": "up", "job": "dcgm", "instance": "10.244.0.9:9400", **own}, 1.0)
    held = gpu(0, **own, exported_namespace="default", exported_pod="train")
    first, second = dcgm_devices(gauge(held, 300.0), gauge(gpu(1, **own), 60.0), targets=[target])
    assert first.holders == (("default", "train"),)
    assert second.holders == ()


def dcgm_pods(answers, targets=()):
    answers = {"up and": vector(*targets)} | {metric: vector(*series) for metric, series in answers.items()}
    return asked_of(answers, lambda prometheus: Dcgm(prometheus, WINDOW_S).pods(600.0))


def test_use_of_gpus_is_the_mean_over_those_that_a_pod_holds():
    found, queries = dcgm_pods(
        {
            "DCGM_FI_DEV_GPU_UTIL": [
                (gpu(0, pod="a"), 90.0),
                (gpu(1, pod="a"), 50.0),
                (gpu(2, pod="b"), 10.0),
                (gpu(3), 1.0),
            ],
            "DCGM_FI_DEV_MEM_COPY_UTIL": [(gpu(0, pod="a"), 20.0), (gpu(1, pod="a"), 40.0)],
            "DCGM_FI_PROF_DRAM_ACTIVE": [(gpu(0, pod="a"), 0.6)],
        }
    )
    assert found == {("default", "a"): GpuUse(70.0, 50.0, 2), ("default", "b"): GpuUse(10.0, None, 1)}
    assert len(queries) == 5  # one a metric, and the exporters


def test_mig_instances_are_judged_by_their_own_engines():
    found, _ = dcgm_pods(
        {
            "DCGM_FI_DEV_GPU_UTIL": [(gpu(0, pod="a", mig="7"), 99.0)],
            "DCGM_FI_PROF_GR_ENGINE_ACTIVE": [(gpu(0, pod="a", mig="7"), 0.2)],
        }
    )
    assert found == {("default", "a"): GpuUse(20.0, None, 1)}


def test_use_beyond_100_percent_is_no_measurement():
    found, _ = dcgm_pods({"DCGM_FI_DEV_GPU_UTIL": [(gpu(0, pod="a"), 101.0)], "DRAM_ACTIVE": [(gpu(0, pod="a"), -0.1)]})
    assert found == {}


# ---- cAdvisor


def test_use_of_pods_takes_two_queries_for_the_whole_cluster():
    answers = {
        "container_cpu": vector(
            ({"namespace": "default", "pod": "a"}, 1.5),
            ({"exported_namespace": "default", "exported_pod": "b"}, 0.5),
            ({"namespace": "default", "pod_name": "c"}, 0.0),
            ({"namespace": "default", "pod": "absurd"}, 1e6),
        ),
        "container_memory": vector(
            ({"namespace": "default", "pod": "a"}, 2e9), ({"namespace": "default", "pod": "b"}, -1.0)
        ),
    }
    usage, queries = asked_of(answers, lambda prometheus: Cadvisor(prometheus).pods(600.0))
    assert usage.cpu_cores == {("default", "a"): 1.5, ("default", "b"): 0.5, ("default", "c"): 0.0}
    assert usage.memory_bytes == {("default", "a"): 2e9}
    assert len(queries) == 2


def cpu_query_of_pods(window_s, step_s):
    _, queries = asked_of({}, lambda prometheus: Cadvisor(prometheus).pods(window_s, step_s=step_s))
    (query,) = (query for query in queries if "container_cpu" in query)
    return query


def test_trap_steps_that_were_not_scraped_do_not_count_as_idle():
    query = cpu_query_of_pods(600.0, 120.0)
    assert query.count("avg_over_time(") == query.count("[600s:120s]") == query.count("[60000ms] offset 120s") == 3
    assert "[600s]" not in query
    assert "offset" not in cpu_query_of_pods(600.0, None)
    assert cpu_query_of_pods(200.0, 120.0) == cpu_query_of_pods(200.0, None), "a window of less than two steps"


def root(node, cores, **labels):
    labels = {"__name__": "container_cpu_usage_seconds_total", "id": "/", "cpu": "total", "node": node, **labels}
    return counter(labels, cores)


def cadvisor_nodes(series, by_pods=(), times=()):
    answers = {'{id="/"}': matrix(*series), "timestamp": vector(*times), "container_cpu": vector(*by_pods)}
    return asked_of(answers, lambda prometheus: Cadvisor(prometheus).nodes(INDEX, 600.0))


def test_busy_cores_of_whole_nodes():
    found, queries = cadvisor_nodes([root("n1", 7.0), root("n1", 7.0, job="second"), root("n10", 0.5), root("x", 1.0)])
    assert found == {"n1": (NOW_S, pytest.approx(7.0)), "n10": (NOW_S, pytest.approx(0.5))}
    assert len(queries) == 1


def test_cpus_one_by_one_add_up():
    found, _ = cadvisor_nodes([root("n1", 0.5, cpu=f"cpu{number:02}") for number in range(8)])
    assert watts(found) == {"n1": 4.0}


def test_where_no_series_of_whole_nodes_are_kept_pods_are_added_up():
    found, _ = cadvisor_nodes(
        [root("n1", 7.0)],
        by_pods=[({"node": "n1"}, 6.0), ({"node": "n10", "instance": "10.0.0.10:10250"}, 3.0), ({"node": "x"}, 1.0)],
        times=[({"node": "n10", "instance": "10.0.0.10:10250"}, NOW_S - 20), ({"node": "n1"}, NOW_S)],
    )
    assert found == {"n1": (NOW_S, pytest.approx(7.0)), "n10": (NOW_S - 20, 3.0)}
