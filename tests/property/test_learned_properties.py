"""Whatever the course: the learned option touches what it may touch, and every feature is a number."""

import math
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from joulie.domain.policy import WorkloadClass
from joulie.domain.profiles.learned import FEATURES, SAMPLES, Course, features, refined
from joulie.domain.profiles.profile import Hints, Use
from joulie.domain.profiles.rules import classify
from joulie.domain.workload import GpuLevel, Level

PERCENT = st.floats(0.0, 100.0)
SERIES = st.lists(st.one_of(PERCENT, st.just(math.nan)), min_size=SAMPLES, max_size=SAMPLES).map(np.array)
MAYBE = st.none() | PERCENT
HINTS = st.builds(
    Hints,
    st.sampled_from([None, *WorkloadClass]),
    st.sampled_from([None, True, False]),
    st.sampled_from([None, *Level]),
    st.sampled_from([None, *Level]),
)


@given(hints=HINTS, cpu=SERIES, gpu=st.none() | SERIES, means=st.tuples(PERCENT, MAYBE, MAYBE, MAYBE))
def test_only_intensities_and_the_gpus_sensitivity_are_ever_refined(hints, cpu, gpu, means) -> None:
    cpu_pct, memory_pct, gpu_pct, activity_pct = means
    use = Use(cpu_pct, memory_pct, gpu_pct, holds_gpus=gpu is not None, gpu_memory_activity_pct=activity_pct)
    course = Course(30.0, cpu, gpu)
    known = features(use, course)
    assert known.keys() <= FEATURES.keys()
    assert all(math.isfinite(value) for value in known.values())
    before = classify(hints, use)
    after = refined(before, hints, use, course)
    assert after.reason.startswith(before.reason)
    assert (
        replace(
            after,
            cpu=replace(after.cpu, intensity=before.cpu.intensity),
            gpu=replace(after.gpu, intensity=before.gpu.intensity, cap_sensitivity=before.gpu.cap_sensitivity),
            reason=before.reason,
        )
        == before
    )
    if hints.gpu_sensitivity is not None:
        assert after.gpu.cap_sensitivity == before.gpu.cap_sensitivity
    for part in ("intensity", "cap_sensitivity"):
        untouched = getattr(before.gpu, part)
        if untouched in {None, GpuLevel.NONE}:
            assert getattr(after.gpu, part) is untouched
    assert (after == before) == (after.reason == before.reason)
