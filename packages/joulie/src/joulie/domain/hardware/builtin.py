"""The built-in catalogue.

Curves are SPECpower_ssj2008 results: wall power of a whole two-socket node at 0, 10, ... 100 % load. GPU idle powers
and exponents are the published simulation model's assumptions, except where a source is named.
"""

from __future__ import annotations

from collections.abc import Mapping

from joulie.domain.hardware.catalogue import Catalogue
from joulie.domain.hardware.models import CpuModel, Evidence, GpuModel, Provenance

_GHZ = 1e9

_CURVE_9654_W = (128.0, 257.0, 300.0, 340.0, 378.0, 410.0, 442.0, 498.0, 577.0, 697.0, 817.0)
_CURVE_9655_W = (138.0, 297.0, 367.0, 438.0, 515.0, 593.0, 661.0, 710.0, 771.0, 812.0, 861.0)
_CURVE_9965_W = (157.0, 265.0, 314.0, 362.0, 412.0, 461.0, 503.0, 544.0, 587.0, 661.0, 800.0)

_SPECPOWER = Evidence(Provenance.MEASURED, "SPECpower_ssj2008 result of a two-socket node, wall power")
_ASSUMED_MODEL = Evidence(Provenance.ASSUMED, "Joulie's published cluster simulation model")
_FGD_POWER = Evidence(Provenance.ASSUMED, "power model for the Alibaba GPU 2023 trace (openb)")
_HALF_LIMIT = Evidence(Provenance.ASSUMED, "half of the default limit; the device's own constraint goes before it")


def _cpu(
    key: str,
    cores: int,
    tdp_w: float,
    cap_w: tuple[float, float],
    clock_ghz: tuple[float, float],
    *,
    curve: tuple[tuple[float, ...], Evidence],
    aliases: tuple[str, ...] = (),
    stand_in_for: tuple[str, ...] = (),
) -> CpuModel:
    """A CPU whose facts are its data sheet's, apart from the curve."""
    vendor = key.split(maxsplit=1)[0]
    sheet = Evidence(Provenance.EXACT, f"{vendor} product specification, {key}")
    return CpuModel(
        key=key,
        vendor=vendor,
        cores_per_socket=cores,
        tdp_w=tdp_w,
        cap_min_w=cap_w[0],
        cap_max_w=cap_w[1],
        base_hz=clock_ghz[0] * _GHZ,
        boost_hz=clock_ghz[1] * _GHZ,
        curve_w=curve[0],
        aliases=aliases,
        stand_in_for=stand_in_for,
        evidence=dict.fromkeys(CpuModel.FACTS, sheet) | {"curve_w": curve[1]},
    )


def _proxy(curve_w: tuple[float, ...], of: str, tdp_ratio: float) -> tuple[tuple[float, ...], Evidence]:
    """A measured curve scaled to another part of the family by its TDP."""
    evidence = Evidence(Provenance.PROXY, f"curve of the {of} x TDP ratio {tdp_ratio:.3g}")
    return tuple(watts * tdp_ratio for watts in curve_w), evidence


# The P suffix marks the single-socket variant of the same silicon: same socket, other platform.
_CPUS = (
    _cpu(
        "AMD EPYC 9654",
        96,
        360.0,
        (320.0, 400.0),
        (2.4, 3.7),
        curve=(_CURVE_9654_W, _SPECPOWER),
        aliases=("9654",),
        stand_in_for=("AMD EPYC 9654P",),
    ),
    _cpu(
        "AMD EPYC 9655",
        96,
        400.0,
        (320.0, 400.0),
        (2.6, 4.5),
        curve=(_CURVE_9655_W, _SPECPOWER),
        aliases=("9655",),
        stand_in_for=("AMD EPYC 9655P",),
    ),
    _cpu(
        "AMD EPYC 9965",
        192,
        500.0,
        (450.0, 500.0),
        (2.25, 3.7),
        curve=(_CURVE_9965_W, _SPECPOWER),
        aliases=("9965",),
    ),
    _cpu(
        "AMD EPYC 9534",
        64,
        280.0,
        (240.0, 300.0),
        (2.45, 3.7),
        curve=_proxy(_CURVE_9654_W, "EPYC 9654", 280.0 / 360.0),
        aliases=("9534",),
    ),
    _cpu(
        "AMD EPYC 9375F",
        32,
        320.0,
        (320.0, 400.0),
        (3.8, 4.8),
        curve=_proxy(_CURVE_9655_W, "EPYC 9655", 320.0 / 400.0),
        aliases=("9375F",),
    ),
    _cpu(
        "Intel Xeon Gold 6530",
        32,
        270.0,
        (270.0, 270.0),
        (2.1, 4.0),
        curve=_proxy(_CURVE_9654_W, "EPYC 9654", 270.0 / 360.0),
        aliases=("Xeon 6530",),
    ),
)


def _gpu(
    key: str,
    vendor: str,
    limits_w: tuple[float, float],
    idle_w: float,
    *,
    gamma: float | None = None,
    aliases: tuple[str, ...] = (),
    stand_in_for: tuple[str, ...] = (),
    evidence: Mapping[str, Evidence] | None = None,
) -> GpuModel:
    """A GPU whose default limit is its largest, as these parts ship."""
    facts = [name for name in GpuModel.FACTS if name != "compute_gamma" or gamma is not None]
    return GpuModel(
        key=key,
        vendor=vendor,
        cap_min_w=limits_w[0],
        cap_max_w=limits_w[1],
        default_w=limits_w[1],
        idle_w=idle_w,
        compute_gamma=gamma,
        aliases=aliases,
        stand_in_for=stand_in_for,
        evidence=dict.fromkeys(facts, _ASSUMED_MODEL) | dict(evidence or {}),
    )


def _trace_gpu(
    key: str, limit_w: float, idle_w: float, aliases: tuple[str, ...], stand_in_for: tuple[str, ...] = ()
) -> GpuModel:
    """A GPU of the openb trace: its power model gives limit and idle power only."""
    evidence = {"cap_min_w": _HALF_LIMIT} | dict.fromkeys(("cap_max_w", "default_w", "idle_w"), _FGD_POWER)
    return _gpu(
        key,
        "NVIDIA",
        (limit_w / 2.0, limit_w),
        idle_w,
        aliases=aliases,
        stand_in_for=stand_in_for,
        evidence=evidence,
    )


_ZEUS_A40 = Evidence(Provenance.MEASURED, "power limits swept on an A40 by the Zeus project (NSDI'23)")
_ZEUS_P100 = Evidence(Provenance.MEASURED, "power limits swept on a P100 by the Zeus project (NSDI'23)")

_GPUS = (
    _gpu("NVIDIA H100 NVL", "NVIDIA", (200.0, 400.0), 60.0, gamma=1.50, aliases=("H100 NVL 94GB",)),
    _gpu(
        "NVIDIA H100 80GB HBM3",
        "NVIDIA",
        (350.0, 700.0),
        120.0,
        gamma=1.50,
        aliases=("H100 SXM", "H100 SXM5", "H100 SXM5 80GB", "NVIDIA H100 SXM5 80GB HBM3"),
    ),
    _gpu("NVIDIA L40S", "NVIDIA", (200.0, 350.0), 60.0, gamma=1.40),
    _gpu(
        "AMD Instinct MI300X",
        "AMD",
        (350.0, 750.0),
        100.0,
        gamma=0.85,
        aliases=("MI300X", "AMD Instinct MI300X OAM"),
        stand_in_for=("AMD Instinct MI300X VF",),
    ),
    _gpu(
        "AMD Radeon Pro W7900",
        "AMD",
        (200.0, 295.0),
        40.0,
        gamma=1.20,
        aliases=("W7900",),
        stand_in_for=("AMD Radeon Pro W7900 Dual Slot",),
    ),
    _gpu(
        "NVIDIA A40",
        "NVIDIA",
        (100.0, 300.0),
        30.0,
        evidence={"cap_min_w": _ZEUS_A40, "cap_max_w": _ZEUS_A40, "default_w": _ZEUS_A40}
        | {"idle_w": Evidence(Provenance.ASSUMED, "a tenth of the default limit")},
    ),
    _gpu(
        "Tesla P100-PCIE-16GB",
        "NVIDIA",
        (125.0, 250.0),
        25.0,
        aliases=("P100", "Tesla P100-PCIE-12GB"),
        evidence={"cap_min_w": _ZEUS_P100, "cap_max_w": _ZEUS_P100, "default_w": _ZEUS_P100, "idle_w": _FGD_POWER},
    ),
    _trace_gpu("Tesla T4", 70.0, 10.0, ()),
    _trace_gpu("Tesla V100-SXM2-16GB", 300.0, 30.0, ("V100M16",)),
    _trace_gpu("Tesla V100-SXM2-32GB", 300.0, 30.0, ("V100M32",)),
    # The trace hides what G2 and G3 are; its power model gives G2 the A10's figures and G3 its own.
    _trace_gpu("NVIDIA A10", 150.0, 30.0, (), stand_in_for=("G2",)),
    _trace_gpu("G3", 400.0, 50.0, ()),
)

BUILTIN_CATALOGUE = Catalogue(_CPUS, _GPUS)
"""The models that Joulie ships with."""
