"""What a workload asks of the grid: the cascade, and what becomes of what cannot be read."""

import pytest

from joulie.domain.grid import names
from joulie.domain.grid.request import (
    Asked,
    Cascade,
    GridDefaults,
    GridRequest,
    Mode,
    WorkloadType,
    first_readable,
    request_of,
    workload_type,
)

OURS = names.SCHEDULER_NAME
LABELLED = {names.POLICIES_LABEL: names.POLICIES_ENABLED}


def request(
    annotations: dict[str, str] | None = None,
    *,
    scheduler: str = OURS,
    labels: dict[str, str] | None = None,
    owner: str | None = None,
    namespace: dict[str, str] | None = None,
    namespace_labels: dict[str, str] | None = None,
    defaults: GridDefaults | None = None,
) -> GridRequest:
    return request_of(
        scheduler,
        annotations or {},
        labels or {},
        owner,
        namespace_labels or {},
        namespace or {},
        defaults or GridDefaults(),
    )


def test_the_annotations_of_the_seed_are_read() -> None:
    asked = request(
        {
            names.CARBON_ENABLED: "false",
            names.CARBON_THRESHOLD: "250.0",
            names.PRICE_THRESHOLD: "0.12",
            names.MAX_DELAY: "1h30m",
            names.RUNTIME_HOURS: "2.5",
        },
        defaults=GridDefaults(price_enabled=True),
    )
    assert asked == GridRequest(
        asked_by=Asked.POD,
        carbon_enabled=False,
        carbon_threshold_g_per_kwh=250.0,
        price_enabled=True,
        price_threshold_per_kwh=0.12,
        max_delay_s=5400.0,
        runtime_s=9000.0,
        runtime_stated=True,
    )


def test_joulies_annotations_are_read() -> None:
    asked = request(
        {
            names.DEFER: "true",
            names.MODE: "interruptible",
            names.INTERRUPTIBLE: "true",
            names.RUNTIME: "90m",
            names.ZONE: "DE",
        },
        scheduler="default-scheduler",
    )
    assert (asked.asked_by, asked.mode, asked.interruptible) == (Asked.POD, Mode.INTERRUPTIBLE, True)
    assert (asked.runtime_s, asked.zone) == (5400.0, "DE")


@pytest.mark.parametrize(
    ("scheduler", "pod", "namespace", "asked_by"),
    [
        ("default-scheduler", {}, {}, Asked.NOBODY),
        (OURS, {}, {}, Asked.POD),
        ("default-scheduler", {names.DEFER: "true"}, {}, Asked.POD),
        ("default-scheduler", {}, {names.DEFER: "true"}, Asked.NAMESPACE),
        ("default-scheduler", {names.DEFER: "false"}, {names.DEFER: "true"}, Asked.NOBODY),
        (OURS, {names.DEFER: "false"}, {}, Asked.NOBODY),
        (OURS, {}, {names.DEFER: "false"}, Asked.POD),
        ("default-scheduler", {names.DEFER: "yes"}, {names.DEFER: "true"}, Asked.NAMESPACE),
        ("default-scheduler", {}, {names.POLICY_PREFIX + "carbon-intensity-threshold": "100"}, Asked.NOBODY),
    ],
)
def test_who_asks(scheduler: str, pod: dict[str, str], namespace: dict[str, str], asked_by: Asked) -> None:
    asked = request(pod, scheduler=scheduler, namespace=namespace, namespace_labels=LABELLED)
    assert asked.asked_by is asked_by
    assert asked.defer is (asked_by is not Asked.NOBODY)


def test_who_skips_does_not_defer() -> None:
    assert not request({names.SKIP: "true"}).defer


def test_the_cascade() -> None:
    key = "carbon-intensity-threshold"
    namespace = {
        names.POLICY_PREFIX + key: "300",
        f"{names.WORKLOAD_PREFIX}batch-policy-{key}": "200",
        f"{names.WORKLOAD_PREFIX}service-{key}": "400",
    }

    def threshold(owner: str | None, pod: dict[str, str] | None = None, labels: dict[str, str] | None = None) -> float:
        asked = request(pod, owner=owner, namespace=namespace, namespace_labels=LABELLED, labels=labels)
        return asked.carbon_threshold_g_per_kwh

    assert threshold("Job", {names.CARBON_THRESHOLD: "50"}) == 50.0
    assert threshold("Job") == 200.0
    assert threshold("ReplicaSet") == 400.0
    assert threshold("StatefulSet") == 300.0
    assert threshold("Job", labels={names.WORKLOAD_TYPE_LABEL: "service"}) == 400.0


def test_policies_of_a_namespace_count_only_with_its_label() -> None:
    namespace = {names.POLICY_PREFIX + "max-scheduling-delay": "1h", names.MODE: "optimal"}
    without = request(namespace=namespace)
    assert (without.max_delay_s, without.mode) == (86400.0, Mode.OPTIMAL)
    assert request(namespace=namespace, namespace_labels=LABELLED).max_delay_s == 3600.0


def test_a_pods_hours_beat_the_namespaces_runtime() -> None:
    assert request({names.RUNTIME_HOURS: "3"}, namespace={names.RUNTIME: "1h"}).runtime_s == 3 * 3600.0


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (names.CARBON_THRESHOLD, "NaN"),
        (names.CARBON_THRESHOLD, "-1"),
        (names.CARBON_THRESHOLD, "1e300"),
        (names.CARBON_THRESHOLD, "2_0"),
        (names.PRICE_THRESHOLD, "cheap"),
        (names.PRICE_THRESHOLD, ""),
        (names.MAX_DELAY, "12"),
        (names.MAX_DELAY, "-1h"),
        (names.MAX_DELAY, "9999999h"),
        (names.RUNTIME, "0"),
        (names.RUNTIME_HOURS, "inf"),
        (names.MODE, "best"),
        (names.SKIP, "yes"),
        (names.ZONE, "\n"),
    ],
)
def test_what_cannot_be_read_counts_as_absent_and_is_reported(key: str, text: str) -> None:
    asked = request({key: text})
    assert len(asked.mistakes) == 1
    assert key in asked.mistakes[0]
    assert repr(text) in asked.mistakes[0]
    assert asked == GridRequest(asked_by=Asked.POD, mistakes=asked.mistakes)


@pytest.mark.parametrize("text", ["1", "t", "T", "TRUE", "true", "True"])
def test_g9_booleans_are_true_as_in_go(text: str) -> None:
    asked = request({names.DEFER: text, names.INTERRUPTIBLE: text, names.CARBON_ENABLED: text}, scheduler="other")
    assert (asked.asked_by, asked.interruptible, asked.carbon_enabled, asked.mistakes) == (Asked.POD, True, True, ())
    assert request({names.SKIP: text}).skip


@pytest.mark.parametrize("text", ["0", "f", "F", "FALSE", "false", "False"])
def test_g9_booleans_are_false_as_in_go(text: str) -> None:
    asked = request({names.CARBON_ENABLED: text, names.SKIP: text, names.INTERRUPTIBLE: text})
    assert (asked.carbon_enabled, asked.skip, asked.interruptible, asked.mistakes) == (False, False, False, ())
    assert request({names.DEFER: text}).asked_by is Asked.NOBODY


@pytest.mark.parametrize("text", ["yes", "no", "tRUE", "2", "", " true"])
def test_g9_what_go_does_not_read_counts_as_absent(text: str) -> None:
    assert len(request({names.CARBON_ENABLED: text}).mistakes) == 1
    assert request({names.CARBON_ENABLED: text}).carbon_enabled


def test_a_malformed_annotation_leaves_the_namespaces_policy_in_force() -> None:
    namespace = {names.POLICY_PREFIX + "carbon-intensity-threshold": "120"}
    asked = request({names.CARBON_THRESHOLD: "low"}, namespace=namespace, namespace_labels=LABELLED)
    assert asked.carbon_threshold_g_per_kwh == 120.0
    assert len(asked.mistakes) == 1


def test_a_mistake_of_the_namespace_is_told_as_such_and_shortened() -> None:
    asked = request(namespace={names.MODE: "x" * 500})
    (mistake,) = asked.mistakes
    assert "of the namespace" in mistake
    assert len(mistake) < 200


@pytest.mark.parametrize(
    ("label", "owner", "expected"),
    [
        ("batch", "Deployment", WorkloadType.BATCH),
        ("nonsense", "DaemonSet", WorkloadType.SYSTEM),
        (None, "CronJob", WorkloadType.BATCH),
        (None, "ReplicaSet", WorkloadType.SERVICE),
        (None, "StatefulSet", WorkloadType.STATEFUL),
        (None, None, WorkloadType.GENERIC),
        (None, "SomethingElse", WorkloadType.GENERIC),
    ],
)
def test_types_of_workloads(label: str | None, owner: str | None, expected: WorkloadType) -> None:
    assert workload_type(label, owner) is expected


def test_policies_of_the_accounting_use_the_same_cascade() -> None:
    namespace = {names.POLICY_PREFIX + "pue": "1.4", names.POLICY_PREFIX + "energy-budget-kwh": "5"}

    def texts(key: str, annotations: dict[str, str]) -> list[str]:
        found = Cascade(annotations, WorkloadType.BATCH, LABELLED, namespace).candidates(key)
        return [candidate.text for candidate in found]

    assert texts(names.PUE, {}) == ["1.4"]
    assert texts(names.PUE, {names.PUE: "1.2"}) == ["1.2", "1.4"]
    assert texts(names.GPU_PUE, {}) == []

    def kwh(text: str) -> float:
        if text == "much":
            raise ValueError("a number of kWh")
        return float(text)

    cascade = Cascade({names.ENERGY_BUDGET_KWH: "much"}, WorkloadType.BATCH, LABELLED, namespace)
    _candidate, value, mistakes = first_readable(cascade, {names.ENERGY_BUDGET_KWH: kwh})
    assert value == 5.0
    assert mistakes == (f"annotation {names.ENERGY_BUDGET_KWH} is ignored: 'much' is not a number of kWh",)


def test_g14_a_price_threshold_may_be_negative():
    found = request({names.PRICE_THRESHOLD: "-0.05"})
    assert (found.price_threshold_per_kwh, found.mistakes) == (-0.05, ())
    assert request({names.PRICE_THRESHOLD: "--1"}).mistakes
    assert request({names.CARBON_THRESHOLD: "-1"}).mistakes
