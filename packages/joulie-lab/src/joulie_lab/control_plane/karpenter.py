"""Karpenter with its KWOK provider, which creates nodes of a KWOK cluster, from its pinned Go module.

It is no part of a control plane: `make autoscalers` runs the tests that need it. Cluster Autoscaler is not here:
docs/howto/clouds/side-by-side.md says what stopped it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from joulie_lab.control_plane.binaries import cache_root, obtain
from joulie_lab.control_plane.go_build import download_module
from joulie_lab.control_plane.tools import Report, Tool

KARPENTER = Tool("karpenter", "sigs.k8s.io/karpenter", "v1.14.0", ("karpenter",), (), 150)
_DEFINITIONS = ("kwok/apis/crds", "pkg/apis/crds")


class Karpenter(NamedTuple):
    """Karpenter's program, and the files of its CustomResourceDefinitions."""

    program: Path
    definitions: Sequence[Path]


def obtain_karpenter(report: Report) -> Karpenter:
    """Find Karpenter in the cache, or build it there.

    Args:
        report: called with each line of progress.

    Raises:
        BinariesError: it cannot be built; the message says why.
    """
    program = obtain(report, tools=(KARPENTER,))["karpenter"]
    module = download_module(KARPENTER.name, KARPENTER.module, cache_root(), report)
    return Karpenter(program, sorted(path for folder in _DEFINITIONS for path in (module / folder).glob("*.yaml")))
