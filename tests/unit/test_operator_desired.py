"""What is stored about a node, and when it needs no new write."""

import msgspec
import pytest

from joulie.adapters.kubernetes.api.v1alpha1 import Condition, NodeTwinStatus, PowerMeasurement
from joulie.apps.operator.desired import desired_node, released, status_matches, with_timestamps
from joulie.domain.control import ControlSettings, Memory, Snapshot, controlled_node, decide
from joulie.domain.control_power import SourceReadings
from joulie.domain.drain import ActiveEco, DrainingPerformance
from joulie.domain.hardware import BUILTIN_CATALOGUE
from joulie.domain.hardware.resolve import resolve
from joulie.domain.policies import POLICIES
from joulie.domain.policy import PolicySettings

NODE = {
    "joulie.io/hw.cpu-model": "AMD-EPYC-9965",
    "joulie.io/hw.cpu-sockets": "2",
    "joulie.io/hw.gpu-model": "NVIDIA-L40S",
    "joulie.io/hw.gpu-count": "2",
}
ECO = POLICIES["static_partition"](PolicySettings(static_hp_frac=0.0))


def decided(labels=NODE, *, power=None, memory=None, blocking=0, settings=None, now_s=1000.0, silent=False, cpus=384.0):
    node = controlled_node("n", resolve(None, labels, {"cpu": cpus}, BUILTIN_CATALOGUE))
    readings = []
    if silent:
        readings.append(SourceReadings.of("rapl", ["n"], {"n": (0.0, 1.0)}))
    if power is not None:
        readings.append(SourceReadings.of("http", ["n"], {"n": (now_s, power)}))
    snapshot = Snapshot(now_s, (node,), blocking={"n": blocking}, power=tuple(readings))
    return desired_node(decide(snapshot, memory or Memory(), settings or ControlSettings(), ECO), 0)


def conditions(status):
    return {one.type: (one.status.value, one.reason, one.message) for one in status.conditions}


def test_an_eco_node_with_everything_known():
    found = decided(power=700.0, memory=Memory({"n": ActiveEco()}))
    assert msgspec.to_builtins(found.spec) == {
        "nodeName": "n",
        "profile": "eco",
        "cpu": {"packagePowerCapPctOfMax": 60.0},
        "gpu": {"powerCap": {"scope": "perGpu", "capPctOfMax": 60.0}},
        "policy": {"name": "static_partition"},
        "scheduling": {"draining": False},
    }
    status = msgspec.to_builtins(found.status)
    assert status["schedulableClass"] == "eco"
    # 60 % of 500 W is below the 450 W that this CPU accepts at least; 60 % of 350 W is above the GPU's 200 W.
    assert status["effectiveCapState"] == {"cpuPct": 90.0, "gpuPct": 60.0}
    assert status["powerMeasurement"] == {
        "source": "http",
        "measuredNodePowerW": 700.0,
        "cpuCappedPowerW": 900.0,
        "gpuCappedPowerW": 420.0,
        "nodeCappedPowerW": 1320.0,
        "cpuTdpW": 1000.0,
        "gpuTdpW": 700.0,
        "nodeTdpW": 1700.0,
        "powerTrendWPerMin": 0.0,
    }
    assert status["predictedPowerHeadroomScore"] == round((1320.0 - 700.0) / 1320.0 * 100.0, 2)
    assert not found.accepts_performance
    assert (found.profile_label, found.draining_label) == ("eco", None)


def test_a_drain_says_what_it_waits_for_and_since_when():
    memory = Memory({"n": DrainingPerformance(since_s=0.0, quiet_since_s=None)})
    blocked = decided(memory=memory, blocking=2)
    assert conditions(blocked.status)["Draining"] == ("True", "BlockingPods", "2 pods on it need full power")
    assert blocked.status.conditions[0].last_transition_time == "1970-01-01T00:00:00Z"
    assert (blocked.spec.profile, blocked.spec.scheduling.draining, blocked.draining_label) == (
        "performance",
        True,
        "true",
    )
    assert conditions(decided(memory=memory).status)["Draining"][1] == "Settling"
    late = decided(memory=memory, blocking=1, now_s=1801.0)
    assert conditions(late.status)["Draining"] == ("True", "TimedOut", "1 pod on it needs full power")


@pytest.mark.parametrize(
    ("labels", "more", "kind", "expected"),
    [
        (NODE, {"power": 1.0}, "PowerMeasured", ("True", "Fresh", "by http")),
        (
            NODE,
            {"power": 1.0, "silent": True},
            "PowerMeasured",
            ("True", "Degraded", "rapl is stale, http stands in for it"),
        ),
        (NODE, {"silent": True}, "PowerMeasured", ("False", "Stale", "rapl is stale, and nothing stands in for it")),
        (NODE, {}, "PowerMeasured", ("False", "Missing", "no source has ever measured it")),
        (NODE, {}, "HardwareKnown", ("True", "Labels", "")),
        (
            {**NODE, "joulie.io/hw.gpu-model": "Z9"},
            {"power": 1.0},
            "HardwareKnown",
            ("True", "Estimated", "Z9 is not in the catalogue: limit of one estimated, 350 W (62 to 1400 W)"),
        ),
        (
            {},
            {"power": 1.0, "cpus": 0.0},
            "HardwareKnown",
            (
                "False",
                "NotRecognised",
                "neither the power nor the number of cores of its CPUs is known (no model)",
            ),
        ),
    ],
)
def test_conditions_say_why(labels, more, kind, expected):
    assert conditions(decided(labels, **more).status)[kind] == expected


def test_without_data_there_is_no_score():
    for status in (decided().status, decided({}, power=5.0, cpus=0.0).status):
        assert status.predicted_power_headroom_score is None
        assert status.power_measurement is None
        assert status.effective_cap_state is not None


def test_a_node_that_is_given_back_is_uncapped_and_unlabelled():
    found = released("n")
    assert (found.spec.cpu, found.spec.gpu, found.spec.profile, found.profile_label) == (
        None,
        None,
        "performance",
        None,
    )


STATUS = NodeTwinStatus(
    schedulable_class="eco",
    predicted_power_headroom_score=50.0,
    estimated_pue=1.2,
    power_measurement=PowerMeasurement(source="http", measured_node_power_w=500.0, node_capped_power_w=1000.0),
    conditions=(Condition("Draining", "False", "NotDraining", "2026-01-01T00:00:00Z"),),
)


def changed(**fields):
    return msgspec.structs.replace(STATUS, **fields)


def measured(**fields):
    return changed(power_measurement=msgspec.structs.replace(STATUS.power_measurement, **fields))


@pytest.mark.parametrize(
    "other",
    [
        STATUS,
        changed(predicted_power_headroom_score=51.0),
        measured(measured_node_power_w=519.0),
        changed(estimated_pue=1.205),
        changed(last_updated="2026-01-01T00:00:00Z"),
        changed(conditions=(Condition("Draining", "False", "NotDraining", "2020-01-01T00:00:00Z"),)),
    ],
)
def test_noise_is_near(other):
    assert status_matches(other, STATUS)


@pytest.mark.parametrize(
    "other",
    [
        changed(predicted_power_headroom_score=51.1),
        changed(predicted_power_headroom_score=None),
        changed(schedulable_class="draining"),
        changed(predicted_psu_stress_score=0.0),
        measured(measured_node_power_w=521.0),
        measured(source="rapl"),
        measured(power_trend_w_per_min=0.0),
        changed(power_measurement=None),
        changed(conditions=(Condition("Draining", "True", "NotDraining", "2026-01-01T00:00:00Z"),)),
        changed(conditions=()),
    ],
)
def test_news_are_not_near(other):
    assert not status_matches(other, STATUS)


def test_a_condition_keeps_its_time_until_its_status_changes():
    other = changed(
        conditions=(Condition("Draining", "False", "Other", ""), Condition("PowerMeasured", "True", "Fresh", ""))
    )
    written = with_timestamps(other, STATUS, now_s=1_800_000_000.0)
    assert [one.last_transition_time for one in written.conditions] == ["2026-01-01T00:00:00Z", "2027-01-15T08:00:00Z"]
    assert written.last_updated == "2027-01-15T08:00:00Z"
