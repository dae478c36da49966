"""Reads which GPUs, or part of one, a pod asks for and holds.

Alibaba's annotations say so in thousandths of a GPU: ``gpu-milli`` on each of ``gpu-count`` GPUs (1 if absent), and
``gpu-index`` the GPUs that whoever gives out devices has chosen, ``2-3-4`` (github.com/alibaba/open-gpu-share and the
simulator of the openb trace). Without them the pod's requests count: whole GPUs, or a MIG instance as its share of one.
"""

from __future__ import annotations

import math
import re

from joulie.adapters.kubernetes.pods import PodFacts
from joulie.domain.scoring.shared_gpus import GpuDemand
from joulie.domain.scoring.sharing import FULL_GPU_MILLI

GPU_MILLI_ANNOTATION = "alibabacloud.com/gpu-milli"
GPU_COUNT_ANNOTATION = "alibabacloud.com/gpu-count"
GPU_INDEX_ANNOTATION = "alibabacloud.com/gpu-index"
_NUMBER = re.compile(r"\d{1,4}", re.ASCII)
_INDEX = re.compile(r"\d{1,3}(-\d{1,3})*", re.ASCII)
_SHOWN_CHARS = 64


def gpu_demand(facts: PodFacts, annotations: dict[str, str]) -> tuple[GpuDemand | None, tuple[str, ...]]:
    """The GPUs of a pod, None if they cannot be counted, and a sentence for everything that is wrong."""
    if GPU_MILLI_ANNOTATION in annotations:
        demand, problem = _stated(annotations)
    else:
        demand, problem = _requested(facts)
    if demand is None or GPU_INDEX_ANNOTATION not in annotations or not demand.gpus:
        return demand, (problem,) if problem else ()
    text = annotations[GPU_INDEX_ANNOTATION]
    given = tuple(dict.fromkeys(map(int, text.split("-")))) if _INDEX.fullmatch(text) else ()
    if len(given) != demand.gpus:
        return demand, (_wrong(GPU_INDEX_ANNOTATION, text, f"does not name {demand.gpus} GPUs as in 2-3-4"),)
    return demand._replace(given=given), ()


def _stated(annotations: dict[str, str]) -> tuple[GpuDemand | None, str]:
    milli, count = annotations[GPU_MILLI_ANNOTATION], annotations.get(GPU_COUNT_ANNOTATION, "1")
    if not _NUMBER.fullmatch(count) or int(count) == 0:
        return None, _wrong(GPU_COUNT_ANNOTATION, count, "is not a number of GPUs")
    if not _NUMBER.fullmatch(milli) or not 0 < int(milli) <= FULL_GPU_MILLI:
        return None, _wrong(GPU_MILLI_ANNOTATION, milli, "is not a number of 1 to 1000 thousandths")
    if int(count) > 1 and int(milli) != FULL_GPU_MILLI:
        return None, _wrong(
            GPU_MILLI_ANNOTATION, milli, f"is a part of each of {count} GPUs, of which only one is shared"
        )
    return GpuDemand(int(count), int(milli), stated=True), ""


def _requested(facts: PodFacts) -> tuple[GpuDemand | None, str]:
    if facts.claims:
        return None, "GPUs of ResourceClaims are not counted by SCORING=frugal"
    gpus = facts.requests.gpus
    if not gpus:
        return GpuDemand(), ""
    if gpus < 1.0:
        # Rounded down, so that seven sevenths fit.
        return GpuDemand(1, max(1, math.floor(gpus * FULL_GPU_MILLI))), ""
    if not math.isclose(gpus, round(gpus), abs_tol=1e-9):
        return None, f"requests for {gpus:g} GPUs are neither a part of one nor whole ones"
    return GpuDemand(round(gpus), FULL_GPU_MILLI), ""


def _wrong(key: str, text: str, why: str) -> str:
    shown = text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "..."
    return f"annotation {key}: {shown!r} {why}; SCORING=frugal does not count it"
