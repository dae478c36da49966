"""The placement policies of the benchmark."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from joulie.domain.scoring.fragmentation import POWER_WEIGHT_MILLI_PER_W

RANDOM, DOT_PRODUCT, GPU_CLUSTERING, GPU_PACKING, BEST_FIT, FGD, PWR_FGD, JOULIE = range(8)
"""How a node is scored."""
Order = Literal["name", "watts", "random"]


@dataclass(frozen=True)
class Policy:
    """How a pod's node is chosen: by score, and equals by an order of the nodes.

    Attributes:
        score: one of the constants above.
        order: of equals, the first by name; by the watts that one more GPU in use adds, then by name; or one at random.
        power_weight: of `PWR_FGD`, PWR's share of the weights, 0 to 1; of `JOULIE`, milli-GPU a watt.
        published_pct: GPU allocation at 130 % arrived that FGD's authors published, percent.
    """

    score: int
    order: Order = "name"
    power_weight: float = 0.0
    published_pct: float | None = None


BASELINES: Mapping[str, Policy] = MappingProxyType(
    {
        "Random": Policy(RANDOM, "random", published_pct=87.47),
        "DotProd": Policy(DOT_PRODUCT, published_pct=90.85),
        "GpuClustering": Policy(GPU_CLUSTERING, published_pct=91.88),
        "GpuPacking": Policy(GPU_PACKING, published_pct=92.00),
        "BestFit": Policy(BEST_FIT, published_pct=93.08),
        "FGD": Policy(FGD, published_pct=95.39),
    }
)
PWR_WEIGHTS = (0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 1.0)
"""PWR's share that is swept; the paper shows 0.025 to 0.5."""
SHOWN_PWR_WEIGHT = 0.1
POWER_WEIGHTS_MILLI_PER_W = (0.0, 0.1, 0.2, POWER_WEIGHT_MILLI_PER_W, 1.0, 2.0)
"""Joulie's that are swept."""
JOULIE_PACKED, JOULIE_FRUGAL = "joulie-packed", "joulie-frugal"


def pwr_fgd(share: float) -> Policy:
    """PWR and FGD, weighted ``share`` to ``1 - share``."""
    return Policy(PWR_FGD, power_weight=share)


def frugal(power_weight_milli_per_w: float) -> Policy:
    """Joulie's score, with frugal GPUs first among equals."""
    return Policy(JOULIE, "watts", power_weight_milli_per_w)


POLICIES: Mapping[str, Policy] = MappingProxyType(
    {
        **BASELINES,
        "PWR+FGD": pwr_fgd(SHOWN_PWR_WEIGHT),
        JOULIE_PACKED: Policy(JOULIE),
        JOULIE_FRUGAL: frugal(POWER_WEIGHT_MILLI_PER_W),
    }
)
"""Those of the main table."""
