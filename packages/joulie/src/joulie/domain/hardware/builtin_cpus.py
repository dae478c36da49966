"""CPUs of the built-in catalogue.

Rows state cores, TDP (W), configurable TDP (W) where there is one, and clocks (GHz). A part that a cloud had made for
itself has no published figures: it takes those of a related part, which its evidence names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from joulie.domain.hardware import builtin_sources as sources
from joulie.domain.hardware.estimates import TYPICAL_FULL_SHARE, TYPICAL_IDLE_SHARE
from joulie.domain.hardware.models import CpuModel, Evidence, Provenance

_GHZ = 1e9
_CURVE_SOCKETS = 2


class _Row(NamedTuple):
    """One part, and whether its single-socket variant, with a P at its end, has the same figures."""

    name: str
    cores: int
    tdp_w: float
    base_ghz: float
    boost_ghz: float
    cap_w: tuple[float, float] | None = None
    p: bool = False
    threads: int = 2


_R = _Row

_EPYC = (
    # 9005, Zen 5
    _R("9965", 192, 500.0, 2.25, 3.7, (450.0, 500.0)),
    _R("9845", 160, 390.0, 2.1, 3.7, (320.0, 400.0)),
    _R("9825", 144, 390.0, 2.2, 3.7, (320.0, 400.0)),
    _R("9755", 128, 500.0, 2.7, 4.1, (450.0, 500.0)),
    _R("9745", 128, 400.0, 2.4, 3.7, (320.0, 400.0)),
    _R("9655", 96, 400.0, 2.6, 4.5, (320.0, 400.0), p=True),
    _R("9645", 96, 320.0, 2.3, 3.7, (320.0, 400.0)),
    _R("9575F", 64, 400.0, 3.3, 5.0, (320.0, 400.0)),
    _R("9565", 72, 400.0, 3.15, 4.3, (320.0, 400.0)),
    _R("9555", 64, 360.0, 3.2, 4.4, (320.0, 400.0), p=True),
    _R("9535", 64, 300.0, 2.4, 4.3, (240.0, 300.0)),
    _R("9475F", 48, 400.0, 3.65, 4.8, (320.0, 400.0)),
    _R("9455", 48, 300.0, 3.15, 4.4, (240.0, 300.0), p=True),
    _R("9375F", 32, 320.0, 3.8, 4.8, (320.0, 400.0)),
    _R("9365", 36, 300.0, 3.4, 4.3, (240.0, 300.0)),
    _R("9355", 32, 280.0, 3.55, 4.4, (240.0, 300.0), p=True),
    _R("9335", 32, 210.0, 3.0, 4.4, (200.0, 240.0)),
    _R("9275F", 24, 320.0, 4.1, 4.8, (320.0, 400.0)),
    _R("9255", 24, 200.0, 3.2, 4.3, (200.0, 240.0)),
    _R("9175F", 16, 320.0, 4.2, 5.0, (320.0, 400.0)),
    _R("9135", 16, 200.0, 3.65, 4.3, (200.0, 240.0)),
    # 9004, Zen 4
    _R("9754", 128, 360.0, 2.25, 3.1, (320.0, 400.0)),
    _R("9734", 112, 340.0, 2.2, 3.0, (320.0, 400.0)),
    _R("9684X", 96, 400.0, 2.55, 3.7, (320.0, 400.0)),
    _R("9654", 96, 360.0, 2.4, 3.7, (320.0, 400.0), p=True),
    _R("9634", 84, 290.0, 2.25, 3.7, (240.0, 300.0)),
    _R("9554", 64, 360.0, 3.1, 3.75, (320.0, 400.0), p=True),
    _R("9534", 64, 280.0, 2.45, 3.7, (240.0, 300.0)),
    _R("9474F", 48, 360.0, 3.6, 4.1, (320.0, 400.0)),
    _R("9454", 48, 290.0, 2.75, 3.8, (240.0, 300.0), p=True),
    _R("9374F", 32, 320.0, 3.85, 4.3, (320.0, 400.0)),
    _R("9354", 32, 280.0, 3.25, 3.8, (240.0, 300.0), p=True),
    _R("9334", 32, 210.0, 2.7, 3.9, (200.0, 240.0)),
    _R("9274F", 24, 320.0, 4.05, 4.3, (320.0, 400.0)),
    _R("9254", 24, 200.0, 2.9, 4.15, (200.0, 240.0)),
    _R("9224", 24, 200.0, 2.5, 3.7, (200.0, 240.0)),
    _R("9124", 16, 200.0, 3.0, 3.7, (200.0, 240.0)),
    _R("8534P", 64, 200.0, 2.3, 3.1, (155.0, 225.0)),
    _R("8434P", 48, 200.0, 2.5, 3.1, (155.0, 225.0)),
    _R("8324P", 32, 180.0, 2.65, 3.0, (155.0, 225.0)),
    # 7003, Zen 3
    _R("7773X", 64, 280.0, 2.2, 3.5, (225.0, 280.0)),
    _R("7763", 64, 280.0, 2.45, 3.5, (225.0, 280.0)),
    _R("7713", 64, 225.0, 2.0, 3.67, (225.0, 240.0), p=True),
    _R("7663", 56, 240.0, 2.0, 3.5, (225.0, 240.0)),
    _R("7643", 48, 225.0, 2.3, 3.6, (225.0, 240.0), p=True),
    _R("75F3", 32, 280.0, 2.95, 4.0, (225.0, 280.0)),
    _R("7573X", 32, 280.0, 2.8, 3.6, (225.0, 280.0)),
    _R("7543", 32, 225.0, 2.8, 3.7, (225.0, 240.0), p=True),
    _R("7513", 32, 200.0, 2.6, 3.65, (165.0, 200.0)),
    _R("74F3", 24, 240.0, 3.2, 4.0, (225.0, 240.0)),
    _R("7453", 28, 225.0, 2.75, 3.45, (225.0, 240.0)),
    _R("7443", 24, 200.0, 2.85, 4.0, (165.0, 200.0), p=True),
    _R("7413", 24, 180.0, 2.65, 3.6, (165.0, 200.0)),
    _R("7343", 16, 190.0, 3.2, 3.9, (165.0, 200.0)),
    _R("7313", 16, 155.0, 3.0, 3.7, (155.0, 180.0), p=True),
    # 7002, Zen 2
    _R("7H12", 64, 280.0, 2.6, 3.3),
    _R("7742", 64, 225.0, 2.25, 3.4),
    _R("7702", 64, 200.0, 2.0, 3.35, p=True),
    _R("7662", 64, 225.0, 2.0, 3.3),
    _R("7642", 48, 225.0, 2.3, 3.3),
    _R("7552", 48, 200.0, 2.2, 3.3),
    _R("7542", 32, 225.0, 2.9, 3.4),
    _R("7532", 32, 200.0, 2.4, 3.3),
    _R("7502", 32, 180.0, 2.5, 3.35, p=True),
    _R("7452", 32, 155.0, 2.35, 3.35),
    _R("7402", 24, 180.0, 2.8, 3.35, p=True),
    _R("7352", 24, 155.0, 2.3, 3.2),
    _R("7302", 16, 155.0, 3.0, 3.3, p=True),
    # 7001, Zen
    _R("7601", 32, 180.0, 2.2, 3.2),
    _R("7551", 32, 180.0, 2.0, 3.0, p=True),
)

_XEON = (
    # Granite Rapids and Sierra Forest
    _R("6980P", 128, 500.0, 2.0, 3.9),
    _R("6979P", 120, 500.0, 2.1, 3.9),
    _R("6972P", 96, 500.0, 2.4, 3.9),
    _R("6952P", 96, 400.0, 2.1, 3.9),
    _R("6960P", 72, 500.0, 2.7, 3.9),
    _R("6944P", 72, 350.0, 1.8, 3.9),
    _R("6787P", 86, 350.0, 2.0, 3.8),
    _R("6776P", 64, 350.0, 2.3, 3.9),
    _R("6767P", 64, 350.0, 2.4, 3.9),
    _R("6760P", 64, 330.0, 2.2, 3.8),
    _R("6740P", 48, 270.0, 2.1, 3.8),
    _R("6730P", 32, 250.0, 2.5, 3.8),
    _R("6780E", 144, 330.0, 2.2, 3.0, threads=1),
    _R("6766E", 144, 250.0, 1.9, 2.7, threads=1),
    _R("6740E", 96, 250.0, 2.4, 3.2, threads=1),
    # Emerald Rapids
    _R("Platinum 8593Q", 64, 385.0, 2.2, 3.9),
    _R("Platinum 8592+", 64, 350.0, 1.9, 3.9),
    _R("Platinum 8592V", 64, 330.0, 2.0, 3.9),
    _R("Platinum 8581V", 60, 270.0, 2.0, 3.9),
    _R("Platinum 8580", 60, 350.0, 2.0, 4.0),
    _R("Platinum 8570", 56, 350.0, 2.1, 4.0),
    _R("Platinum 8568Y+", 48, 350.0, 2.3, 4.0),
    _R("Platinum 8562Y+", 32, 300.0, 2.8, 4.1),
    _R("Platinum 8558", 48, 330.0, 2.1, 4.0),
    _R("Gold 6548Y+", 32, 250.0, 2.5, 4.1),
    _R("Gold 6542Y", 24, 250.0, 2.9, 4.1),
    _R("Gold 6538Y+", 32, 225.0, 2.2, 4.0),
    _R("Gold 6530", 32, 270.0, 2.1, 4.0),
    _R("Gold 6526Y", 16, 195.0, 2.8, 3.9),
    _R("Gold 5520+", 28, 205.0, 2.2, 4.0),
    # Sapphire Rapids
    _R("Platinum 8490H", 60, 350.0, 1.9, 3.5),
    _R("Platinum 8480+", 56, 350.0, 2.0, 3.8),
    _R("Platinum 8470", 52, 350.0, 2.0, 3.8),
    _R("Platinum 8468", 48, 350.0, 2.1, 3.8),
    _R("Platinum 8462Y+", 32, 300.0, 2.8, 4.1),
    _R("Platinum 8460Y+", 40, 300.0, 2.0, 3.7),
    _R("Platinum 8452Y", 36, 300.0, 2.0, 3.2),
    _R("Gold 6454S", 32, 270.0, 2.2, 3.4),
    _R("Gold 6448Y", 32, 225.0, 2.1, 4.1),
    _R("Gold 6442Y", 24, 225.0, 2.6, 4.0),
    _R("Gold 6438Y+", 32, 205.0, 2.0, 4.0),
    _R("Gold 6430", 32, 270.0, 2.1, 3.4),
    _R("Gold 6426Y", 16, 185.0, 2.5, 4.1),
    _R("Gold 5418Y", 24, 185.0, 2.0, 3.8),
    _R("CPU Max 9480", 56, 350.0, 1.9, 3.5),
    # Ice Lake
    _R("Platinum 8380", 40, 270.0, 2.3, 3.4),
    _R("Platinum 8368", 38, 270.0, 2.4, 3.4),
    _R("Platinum 8362", 32, 265.0, 2.8, 3.6),
    _R("Platinum 8360Y", 36, 250.0, 2.4, 3.5),
    _R("Platinum 8358", 32, 250.0, 2.6, 3.4),
    _R("Platinum 8352Y", 32, 205.0, 2.2, 3.4),
    _R("Gold 6354", 18, 205.0, 3.0, 3.6),
    _R("Gold 6348", 28, 235.0, 2.6, 3.5),
    _R("Gold 6346", 16, 205.0, 3.1, 3.6),
    _R("Gold 6342", 24, 230.0, 2.8, 3.5),
    _R("Gold 6338", 32, 205.0, 2.0, 3.2),
    _R("Gold 6330", 28, 205.0, 2.0, 3.1),
    _R("Gold 6326", 16, 185.0, 2.9, 3.5),
    _R("Gold 5320", 26, 185.0, 2.2, 3.4),
    _R("Silver 4314", 16, 135.0, 2.4, 3.4),
    # Cascade Lake
    _R("Platinum 8280", 28, 205.0, 2.7, 4.0),
    _R("Platinum 8276", 28, 165.0, 2.2, 4.0),
    _R("Platinum 8270", 26, 205.0, 2.7, 4.0),
    _R("Platinum 8268", 24, 205.0, 2.9, 3.9),
    _R("Platinum 8260", 24, 165.0, 2.4, 3.9),
    _R("Gold 6254", 18, 200.0, 3.1, 4.0),
    _R("Gold 6252", 24, 150.0, 2.1, 3.7),
    _R("Gold 6248", 20, 150.0, 2.5, 3.9),
    _R("Gold 6240", 18, 150.0, 2.6, 3.9),
    _R("Gold 6230", 20, 125.0, 2.1, 3.9),
    _R("Gold 6226", 12, 125.0, 2.7, 3.7),
    _R("Gold 5218", 16, 125.0, 2.3, 3.9),
    _R("Silver 4216", 16, 100.0, 2.1, 3.2),
    _R("Silver 4214", 12, 85.0, 2.2, 3.2),
    # Skylake
    _R("Platinum 8180", 28, 205.0, 2.5, 3.8),
    _R("Platinum 8176", 28, 165.0, 2.1, 3.8),
    _R("Platinum 8168", 24, 205.0, 2.7, 3.7),
    _R("Platinum 8160", 24, 150.0, 2.1, 3.7),
    _R("Gold 6154", 18, 200.0, 3.0, 3.7),
    _R("Gold 6152", 22, 140.0, 2.1, 3.7),
    _R("Gold 6148", 20, 150.0, 2.4, 3.7),
    _R("Gold 6140", 18, 140.0, 2.3, 3.7),
    _R("Gold 6130", 16, 125.0, 2.1, 3.7),
    _R("Gold 5120", 14, 105.0, 2.2, 3.2),
    _R("Silver 4114", 10, 85.0, 2.2, 3.0),
)

_ALTRA = (
    _R("Q80-33", 80, 250.0, 3.3, 3.3, threads=1),
    _R("Q80-30", 80, 210.0, 3.0, 3.0, threads=1),
    _R("Q80-26", 80, 175.0, 2.6, 2.6, threads=1),
    _R("Q80-23", 80, 150.0, 2.3, 2.3, threads=1),
    _R("Q72-30", 72, 195.0, 3.0, 3.0, threads=1),
    _R("Q64-33", 64, 220.0, 3.3, 3.3, threads=1),
    _R("Q64-30", 64, 180.0, 3.0, 3.0, threads=1),
    _R("Q64-26", 64, 125.0, 2.6, 2.6, threads=1),
    _R("Q64-24", 64, 95.0, 2.4, 2.4, threads=1),
)


class _CloudPart(NamedTuple):
    """A part made for one cloud: what its maker never published is taken from a related part."""

    key: str
    related: str
    cores: int | None = None
    tdp: tuple[float, Evidence] | None = None
    threads: int = 2


_C = _CloudPart
_CLOUD = (
    # AWS
    _C("AMD EPYC 7571", "AMD EPYC 7601"),
    _C("AMD EPYC 7R32", "AMD EPYC 7642"),
    _C("AMD EPYC 7R13", "AMD EPYC 7643"),
    _C("AMD EPYC 9R14", "AMD EPYC 9654", threads=1),
    _C("AMD EPYC 9R45", "AMD EPYC 9655", threads=1),
    _C("Intel Xeon Platinum 8124M", "Intel Xeon Gold 6154"),
    _C("Intel Xeon Platinum 8175M", "Intel Xeon Platinum 8160", tdp=(165.0, sources.IMPACT_FRAMEWORK)),
    _C("Intel Xeon Platinum 8259CL", "Intel Xeon Platinum 8260", tdp=(210.0, sources.CODECARBON_TDP)),
    _C("Intel Xeon Platinum 8275CL", "Intel Xeon Platinum 8268"),
    _C("Intel Xeon Platinum 8375C", "Intel Xeon Platinum 8362"),
    _C("Intel Xeon Platinum 8488C", "Intel Xeon Platinum 8468"),
    _C("Intel Xeon 6975P-C", "Intel Xeon 6972P"),
    # Google Cloud, whose Intel machines mostly hide their model
    _C("AMD EPYC 7B12", "AMD EPYC 7742", tdp=(240.0, sources.CODECARBON_TDP)),
    _C("AMD EPYC 7B13", "AMD EPYC 7763"),
    _C("AMD EPYC 9B14", "AMD EPYC 9654"),
    _C("Intel Xeon Platinum 8481C", "Intel Xeon Platinum 8480+"),
    # Azure
    _C("AMD EPYC 7V12", "AMD EPYC 7742"),
    _C("AMD EPYC 7V13", "AMD EPYC 7763"),
    _C("AMD EPYC 7V73X", "AMD EPYC 7773X"),
    _C("AMD EPYC 9V33X", "AMD EPYC 9684X"),
    _C("AMD EPYC 9V74", "AMD EPYC 9654", cores=80),
    _C("AMD EPYC 9V84", "AMD EPYC 9654"),
    _C("Intel Xeon Platinum 8171M", "Intel Xeon Platinum 8170", tdp=(165.0, sources.CODECARBON_TDP)),
    _C("Intel Xeon Platinum 8272CL", "Intel Xeon Platinum 8270", tdp=(195.0, sources.ECO_CI)),
    _C("Intel Xeon Platinum 8370C", "Intel Xeon Platinum 8362", tdp=(270.0, sources.ECO_CI)),
    _C("Intel Xeon Platinum 8480C", "Intel Xeon Platinum 8480+"),
)
_RELATED_ONLY = (_R("Platinum 8170", 26, 165.0, 2.1, 3.7),)

_CURVE_9654_W = (128.0, 257.0, 300.0, 340.0, 378.0, 410.0, 442.0, 498.0, 577.0, 697.0, 817.0)
_CURVE_9655_W = (138.0, 297.0, 367.0, 438.0, 515.0, 593.0, 661.0, 710.0, 771.0, 812.0, 861.0)
_CURVE_9965_W = (157.0, 265.0, 314.0, 362.0, 412.0, 461.0, 503.0, 544.0, 587.0, 661.0, 800.0)


def _of_9654(tdp_ratio: float) -> tuple[tuple[float, ...], Evidence]:
    evidence = Evidence(Provenance.PROXY, f"curve of the EPYC 9654 x TDP ratio {tdp_ratio:.3g}")
    return tuple(watts * tdp_ratio for watts in _CURVE_9654_W), evidence


_CURVES = {
    "AMD EPYC 9654": (_CURVE_9654_W, sources.SPECPOWER),
    "AMD EPYC 9655": (_CURVE_9655_W, sources.SPECPOWER),
    "AMD EPYC 9965": (_CURVE_9965_W, sources.SPECPOWER),
    "AMD EPYC 9534": _of_9654(280.0 / 360.0),
    "AMD EPYC 9375F": (
        tuple(watts * 0.8 for watts in _CURVE_9655_W),
        Evidence(Provenance.PROXY, "curve of the EPYC 9655 x TDP ratio 0.8"),
    ),
    "Intel Xeon Gold 6530": _of_9654(270.0 / 360.0),
}
"""Wall power of two-socket nodes at 0, 10, ... 100 % load; all other models have the typical curve of their TDP."""

_ALIASES = {
    "AMD EPYC 9654": ("9654",),
    "AMD EPYC 9655": ("9655",),
    "AMD EPYC 9965": ("9965",),
    "AMD EPYC 9534": ("9534",),
    "AMD EPYC 9375F": ("9375F",),
    "Intel Xeon Gold 6530": ("Xeon 6530",),
}
"""Names in the published experiments."""


def builtin_cpus() -> tuple[CpuModel, ...]:
    """All CPUs."""
    listed = [
        *_models("AMD", "EPYC ", _EPYC, sources.AMD_LIST),
        *_models("Intel", "Xeon ", (*_XEON, *_RELATED_ONLY), sources.INTEL_LIST),
        *_models("Ampere", "Altra ", _ALTRA, sources.ALTRA_LIST),
        *_models("Ampere", "Altra Max ", (_R("M128-30", 128, 250.0, 3.0, 3.0, threads=1),), sources.ALTRA_MAX),
    ]
    by_key = {model.key: model for model in listed}
    return (*listed, *(_cloud_model(part, by_key[part.related]) for part in _CLOUD))


def _models(vendor: str, family: str, rows: Iterable[_Row], source: Evidence) -> Iterator[CpuModel]:
    # Models of one source share their evidence.
    with_range = dict.fromkeys(CpuModel.FACTS, source) | {"curve_w": sources.TYPICAL_CURVE}
    without = with_range | dict.fromkeys(("cap_min_w", "cap_max_w"), sources.NO_CAP_RANGE)
    for row in rows:
        key = f"{vendor} {family}{row.name}"
        cap_min_w, cap_max_w = row.cap_w or (row.tdp_w, row.tdp_w)
        model = CpuModel(
            key=key,
            vendor=vendor,
            cores_per_socket=row.cores,
            tdp_w=row.tdp_w,
            cap_min_w=cap_min_w,
            cap_max_w=cap_max_w,
            base_hz=row.base_ghz * _GHZ,
            boost_hz=row.boost_ghz * _GHZ,
            curve_w=_typical_curve_w(row.tdp_w),
            curve_sockets=_CURVE_SOCKETS,
            threads_per_core=row.threads,
            evidence=with_range if row.cap_w else without,
        )
        if row.p:
            yield replace(model, key=f"{key}P")
        if key in _CURVES:
            curve_w, curve = _CURVES[key]
            model = replace(model, curve_w=curve_w, evidence={**model.evidence, "curve_w": curve})
        yield replace(model, aliases=_ALIASES.get(key, ()) or _without_plus(key))


def _without_plus(key: str) -> tuple[str, ...]:
    """The name as a label says it, which cannot hold the plus; no part has it."""
    return (key.rstrip("+"),) if key.endswith("+") else ()


def _cloud_model(part: _CloudPart, related: CpuModel) -> CpuModel:
    """A cloud's own part; its limits and clocks were never published, and its clocks are left out."""
    taken = Evidence(Provenance.PROXY, f"never published; taken as that of the {related.key}")
    tdp_w, tdp = part.tdp or (related.tdp_w, taken)
    own_cores = Evidence(Provenance.EXACT, "the model string that the part itself prints")
    stated = [name for name in CpuModel.FACTS if name not in {"base_hz", "boost_hz"}]
    evidence = dict.fromkeys(stated, taken) | {"tdp_w": tdp, "curve_w": sources.TYPICAL_CURVE}
    evidence |= dict.fromkeys(("cap_min_w", "cap_max_w"), sources.NO_CAP_RANGE)
    if part.cores is not None:
        evidence["cores_per_socket"] = own_cores
    return replace(
        related,
        key=part.key,
        cores_per_socket=part.cores or related.cores_per_socket,
        tdp_w=tdp_w,
        cap_min_w=tdp_w,
        cap_max_w=tdp_w,
        base_hz=None,
        boost_hz=None,
        curve_w=_typical_curve_w(tdp_w),
        threads_per_core=part.threads,
        aliases=(),
        stand_in_for=(),
        evidence=evidence,
    )


def _typical_curve_w(tdp_w: float) -> tuple[float, float]:
    """Wall power of a two-socket node when idle and at full load."""
    both_w = _CURVE_SOCKETS * tdp_w
    return TYPICAL_IDLE_SHARE * both_w, TYPICAL_FULL_SHARE * both_w
