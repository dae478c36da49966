import dataclasses
from typing import Any

import pytest

from joulie.domain.hardware import (
    BUILTIN_CATALOGUE,
    AmbiguousNameError,
    CapRange,
    Catalogue,
    CpuModel,
    Evidence,
    GpuModel,
    HardwareModelError,
    Provenance,
    Quality,
    normalised,
)
from joulie.domain.units import InvalidQuantityError

SHEET = Evidence(Provenance.EXACT, "data sheet")


def gpu(key: str, **changes: Any) -> GpuModel:
    facts = {"cap_min_w": 100.0, "cap_max_w": 300.0, "default_w": 250.0, "idle_w": 20.0}
    evidence = dict.fromkeys(facts, SHEET)
    return GpuModel(**({"key": key, "vendor": "NVIDIA", "evidence": evidence} | facts | changes))


def cpu(key: str, **changes: Any) -> CpuModel:
    facts: dict[str, Any] = {
        "cores_per_socket": 64,
        "tdp_w": 280.0,
        "cap_min_w": 225.0,
        "cap_max_w": 280.0,
        "base_hz": 2.45e9,
        "boost_hz": 3.5e9,
        "curve_w": (100.0, 600.0),
    }
    evidence = dict.fromkeys(facts, SHEET)
    return CpuModel(**({"key": key, "vendor": "AMD", "evidence": evidence} | facts | changes))


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ("AMD EPYC 9654 96-Core Processor", "AMD EPYC 9654"),
        ("AMD EPYC 9655 96-Core Processor", "AMD EPYC 9655"),
        ("AMD EPYC 9965 192-Core Processor", "AMD EPYC 9965"),
        ("AMD EPYC 9534 64-Core Processor", "AMD EPYC 9534"),
        ("AMD EPYC 9375F 32-Core Processor", "AMD EPYC 9375F"),
        ("AMD-EPYC-9654", "AMD EPYC 9654"),
        ("AMD_EPYC_9654", "AMD EPYC 9654"),
        ("Intel(R) Xeon(R) Gold 6530", "Intel Xeon Gold 6530"),
        ("INTEL(R) XEON(R) GOLD 6530 CPU @ 2.10GHz", "Intel Xeon Gold 6530"),
    ],
)
def test_recognises_cpus_as_linux_and_labels_print_them(raw: str, key: str) -> None:
    match = BUILTIN_CATALOGUE.cpu(raw)
    assert match.model is not None
    assert (match.model.key, match.quality, match.raw) == (key, Quality.EXACT, raw)


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA-H100-80GB-HBM3", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.10gb", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H100 NVL", "NVIDIA H100 NVL"),
        ("NVIDIA-H100-NVL", "NVIDIA H100 NVL"),
        ("NVIDIA L40S", "NVIDIA L40S"),
        ("NVIDIA-L40S-SHARED", "NVIDIA L40S"),
        ("AMD Instinct MI300X", "AMD Instinct MI300X"),
        ("AMD_Instinct_MI300X_OAM", "AMD Instinct MI300X"),
        ("AMD Radeon PRO W7900", "AMD Radeon Pro W7900"),
        ("Tesla P100-PCIE-16GB", "Tesla P100-PCIE-16GB"),
        ("NVIDIA Tesla T4", "Tesla T4"),
        ("Tesla T4", "Tesla T4"),
        ("Tesla V100-SXM2-16GB", "Tesla V100-SXM2-16GB"),
        ("V100M32", "Tesla V100-SXM2-32GB"),
        ("NVIDIA A10", "NVIDIA A10"),
        ("NVIDIA A40", "NVIDIA A40"),
        ("G3", "G3"),
    ],
)
def test_recognises_gpus_as_nvml_rocm_and_labels_print_them(raw: str, key: str) -> None:
    match = BUILTIN_CATALOGUE.gpu(raw)
    assert match.model is not None
    assert (match.model.key, match.quality) == (key, Quality.EXACT)


@pytest.mark.parametrize(
    "raw",
    [
        "NVIDIA L40SX",
        "NVIDIA H100",
        "NVIDIA A100",
        "Tesla V100-SXM2-16GB-LS",
        "NVIDIA A10M",
        "NVIDIA A4000",
        "Tesla P100-SXM2-12GB",
        "",
        "NVIDIA",
    ],
)
def test_trap_gpus_matched_by_substring(raw: str) -> None:
    match = BUILTIN_CATALOGUE.gpu(raw)
    assert match.model is None
    assert match.quality is Quality.UNAVAILABLE


@pytest.mark.parametrize("raw", ["AMD EPYC 965", "AMD EPYC 96540", "Intel Xeon Gold 6530Y", "AMD EPYC 9375"])
def test_trap_cpus_matched_by_substring(raw: str) -> None:
    assert BUILTIN_CATALOGUE.cpu(raw).quality is Quality.UNAVAILABLE


def test_hidden_model_of_the_trace_stands_in_for_the_a10() -> None:
    match = BUILTIN_CATALOGUE.gpu("G2")
    assert match.model is not None
    assert (match.model.key, match.quality) == ("NVIDIA A10", Quality.HEURISTIC)


def test_key_beats_alias_and_alias_beats_stand_in() -> None:
    catalogue = Catalogue(
        gpus=(gpu("A", aliases=("B",), stand_in_for=("C",)), gpu("B"), gpu("D", aliases=("C",))),
    )
    assert [catalogue.gpu(name).model.key for name in ("A", "B", "C")] == ["A", "B", "D"]  # type: ignore[union-attr]


def test_two_models_with_one_alias_are_refused() -> None:
    with pytest.raises(AmbiguousNameError, match="'X-1' names both 'A' and 'B'"):
        Catalogue(gpus=(gpu("A", aliases=("x 1",)), gpu("B", aliases=("X-1",))))


def test_extension_adds_and_replaces_and_leaves_the_original() -> None:
    mine = gpu("nvidia l40s", default_w=300.0)
    extended = BUILTIN_CATALOGUE.extended(gpus=[mine, gpu("Z9000")])
    assert extended.gpu("NVIDIA L40S").model is mine
    assert extended.gpu("NVIDIA Z9000").quality is Quality.EXACT
    assert BUILTIN_CATALOGUE.gpu("NVIDIA Z9000").model is None
    assert len(extended.gpus) == len(BUILTIN_CATALOGUE.gpus) + 1


def test_catalogue_figures() -> None:
    nvl = BUILTIN_CATALOGUE.gpu("H100 NVL").model
    xeon = BUILTIN_CATALOGUE.cpu("Xeon Gold 6530").model
    assert nvl is not None
    assert xeon is not None
    assert (nvl.cap_min_w, nvl.cap_max_w, nvl.idle_w, nvl.compute_gamma) == (200.0, 400.0, 60.0, 1.5)
    assert xeon.curve_w[-1] == pytest.approx(817.0 * 270.0 / 360.0)
    assert xeon.evidence["curve_w"].provenance is Provenance.PROXY
    assert xeon.evidence["tdp_w"].provenance is Provenance.EXACT


def test_no_alias_repeats_what_normalisation_does_anyway() -> None:
    for model in (*BUILTIN_CATALOGUE.cpus, *BUILTIN_CATALOGUE.gpus):
        names = [normalised(name) for name in (model.key, *model.aliases, *model.stand_in_for)]
        assert len(set(names)) == len(names), model.key


def test_every_fact_has_evidence() -> None:
    for model in (*BUILTIN_CATALOGUE.cpus, *BUILTIN_CATALOGUE.gpus):
        for fact in model.FACTS:
            if getattr(model, fact) is not None:
                assert model.evidence[fact].source


def test_fact_without_evidence_is_refused() -> None:
    with pytest.raises(HardwareModelError, match="A: no evidence for idle_w"):
        gpu("A", evidence=dict.fromkeys(("cap_min_w", "cap_max_w", "default_w"), SHEET))
    with pytest.raises(HardwareModelError, match="evidence for unknown facts: compute_gamma"):
        gpu("A", evidence=dict.fromkeys(GpuModel.FACTS, SHEET))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"curve_w": (600.0, 100.0)}, "must not fall"),
        ({"curve_w": (100.0, 200.0, 300.0)}, "11 points or 2"),
        ({"boost_hz": 1e9}, "below base_hz"),
        ({"cap_min_w": 300.0, "cap_max_w": 400.0}, "within the device's range"),
    ],
)
def test_contradictory_cpu_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cpu("X", **changes)


def test_idle_above_limit_is_refused() -> None:
    with pytest.raises(HardwareModelError, match="idle_w must be below"):
        gpu("X", idle_w=260.0)


def test_trap_cap_range_percent_uses_base_not_device_maximum() -> None:
    limits = CapRange(min_w=100.0, max_w=300.0, base_w=250.0)
    assert limits.from_percent(100.0) == 250.0
    assert limits.from_percent(60.0) == 150.0


def test_cap_is_clamped_to_the_device() -> None:
    limits = CapRange(min_w=200.0, max_w=400.0, base_w=400.0)
    assert [limits.from_percent(percent) for percent in (10.0, 75.0, 100.0)] == [200.0, 300.0, 400.0]
    assert [limits.clamped(cap_w) for cap_w in (1.0, 250.0, 900.0)] == [200.0, 250.0, 400.0]


@pytest.mark.parametrize("percent", [0.0, -1.0, 100.5, float("nan")])
def test_bad_percent_is_refused(percent: float) -> None:
    with pytest.raises(InvalidQuantityError, match="percent"):
        CapRange(1.0, 2.0, 2.0).from_percent(percent)


def test_normalisation_is_idempotent() -> None:
    for model in (*BUILTIN_CATALOGUE.cpus, *BUILTIN_CATALOGUE.gpus):
        assert normalised(normalised(model.key)) == normalised(model.key)


def test_models_are_values() -> None:
    assert dataclasses.replace(gpu("A")) == gpu("A")
    assert len({gpu("A"), gpu("A")}) == 1
