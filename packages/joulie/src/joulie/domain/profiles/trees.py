"""The learned trees. Written by ``joulie bench profiles --train``: do not edit."""

from __future__ import annotations

from collections.abc import Mapping

from joulie.domain.profiles.tree import Leaf, Split, Target, Tree
from joulie.domain.workload import Level

TREES: Mapping[Target, Tree] = {
    Target.CPU_INTENSITY: (
        Split("cpu_mean", 31, 1, 6),
        Split("cpu_late", 74, 2, 5),
        Split("cpu_busy", 89, 3, 4),
        Leaf(Level.HIGH),
        Leaf(None),
        Leaf(None),
        Split("cpu_late", 28, 7, 10),
        Split("cpu_late", 30, 8, 9),
        Leaf(Level.MEDIUM),
        Leaf(None),
        Leaf(None),
    ),
    Target.GPU_INTENSITY: (
        Split("gpu_late", 70, 1, 2),
        Leaf(None),
        Split("gpu_mean", 28, 3, 4),
        Leaf(None),
        Split("cpu_busy", 26, 5, 6),
        Leaf(Level.MEDIUM),
        Leaf(None),
    ),
    Target.GPU_SENSITIVITY: (
        Split("gpu_busy", 75, 1, 8),
        Split("gpu_memory", 35, 2, 5),
        Split("gpu_busy", 90, 3, 4),
        Leaf(Level.MEDIUM),
        Leaf(Level.LOW),
        Split("gpu_busy", 87, 6, 7),
        Leaf(None),
        Leaf(Level.MEDIUM),
        Split("gpu_peak", 73, 9, 12),
        Split("gpu_memory", 20, 10, 11),
        Leaf(Level.LOW),
        Leaf(None),
        Split("gpu_memory", 1, 13, 14),
        Leaf(Level.LOW),
        Leaf(None),
    ),
}
