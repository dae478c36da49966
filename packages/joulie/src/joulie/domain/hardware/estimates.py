"""What a device draws at most where neither it nor the catalogue says: an estimate with its interval, never a limit.

Nothing is capped by an estimate. It is for scores and forecasts, which would otherwise know nothing of a whole node
because of one device, and whoever shows it says that it is one.
"""

from __future__ import annotations

from typing import NamedTuple

from joulie.domain.quantities import finite_number, positive_number

COVERAGE = 0.90
"""Minimum share of the catalogue's CPUs whose TDP lies within the interval."""

THREADS_PER_CORE = 2
"""Logical CPUs of a core where nobody says: servers of the x86 architecture ship with two threads a core."""

TDP_OF_ONE_CORE_W = 60.0
TDP_EXPONENT = 0.375
TDP_FACTORS = (0.65, 1.45)
"""TDP of a package, ``60 W x cores ** 0.375``, and the factors that bound it: fitted to the built-in catalogue, which a
test holds them to."""
FEWEST_CORES = 16.0
"""Below it, TDP is taken in proportion to the cores: so few are more often part of a machine than a machine."""
SMALLEST_W_PER_CORE = 1.48
"""Lower end for a node that may be a share of a large machine (64 cores at 95 W, the catalogue's minimum)."""

TYPICAL_IDLE_SHARE = 0.214
TYPICAL_FULL_SHARE = 1.066
"""Power of a server without GPUs when idle and at full load, over the TDP of its CPUs: medians of 515
SPECpower_ssj2008 results (see `joulie.domain.power_estimate`)."""

FALLBACK_GPU_W = 350.0
"""Limit of one NVIDIA or unrecognised GPU (spec: marginal power)."""
FALLBACK_AMD_GPU_W = 400.0
GPU_LIMITS_W = (62.0, 1400.0)
"""Limits of one device where nobody knows the model: the catalogue's, from A16 to MI355X."""
GPU_IDLE_SHARE = 0.15
"""Idle power of a GPU of unknown model, as a share of its limit (assumed: 0.10 to 0.20 in the catalogue)."""


class Estimate(NamedTuple):
    """A power that nobody states, and the interval that it lies in, W."""

    expected_w: float
    low_w: float
    high_w: float

    def times(self, count: float) -> Estimate:
        """The same of `count` devices together."""
        return Estimate(*(power_w * count for power_w in self))

    def __str__(self) -> str:
        return f"{self.expected_w:.0f} W ({self.low_w:.0f} to {self.high_w:.0f} W)"


def estimated_cpu_tdp(cores: float, sockets: int | None = None) -> Estimate:
    """TDP of all CPU packages of a node, from its physical cores.

    Args:
        cores: of all packages, above 0.
        sockets: packages; None where nobody counted them. One is expected then, and two are within the interval.

    Raises:
        InvalidQuantityError: no cores, or no packages.
    """
    positive_number("cores", cores)
    packages = finite_number("sockets", 1 if sockets is None else sockets, minimum=1.0)
    expected_w = _package_tdp_w(cores / packages) * packages
    most_w = expected_w if sockets is not None else max(expected_w, 2.0 * _package_tdp_w(cores / 2.0))
    low, high = TDP_FACTORS
    return Estimate(expected_w, min(low * expected_w, SMALLEST_W_PER_CORE * cores), high * most_w)


def estimated_gpu_limit(vendor: str | None) -> Estimate:
    """Default limit of one GPU of unknown model, by its vendor."""
    is_amd = vendor is not None and vendor.upper() == "AMD"
    return Estimate(FALLBACK_AMD_GPU_W if is_amd else FALLBACK_GPU_W, *GPU_LIMITS_W)


def _package_tdp_w(cores: float) -> float:
    counted = max(cores, FEWEST_CORES)
    whole_w: float = TDP_OF_ONE_CORE_W * counted**TDP_EXPONENT
    return whole_w * cores / counted
