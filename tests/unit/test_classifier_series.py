"""The course of a workload's use: of its pods that are known at each time."""

import numpy as np
import pytest

from joulie.adapters.prometheus.readings import Steps
from joulie.apps.operator.classifier.series import ClusterSeries, workload_series
from joulie.domain.profiles.learned import SAMPLES

STEPS = Steps(1000.0, 1000.0 + 30.0 * (SAMPLES - 1), 30.0, 90.0)
ONE, TWO = ("team", "one"), ("team", "two")


def at(*places, value):
    return {1000.0 + 30.0 * place: value for place in places}


def test_use_is_over_what_the_pods_request_that_are_known():
    cores = {ONE: at(0, 1, 2, value=1.0), TWO: at(1, 2, value=6.0), ("team", "other"): at(0, value=9.0)}
    course = workload_series({ONE: 2.0, TWO: 8.0}, {}, ClusterSeries(STEPS, cores, {}))
    assert course.gpu_pct is None
    assert course.step_s == 30.0
    assert course.cpu_pct[:3] == pytest.approx([50.0, 70.0, 70.0])
    assert np.isnan(course.cpu_pct[3:]).all(), "missing, not zero"


def test_more_than_was_requested_is_all_of_it():
    course = workload_series({ONE: 2.0}, {}, ClusterSeries(STEPS, {ONE: at(0, value=5.0)}, {}))
    assert course.cpu_pct[0] == 100.0


def test_gpus_weigh_by_how_many_a_pod_holds():
    courses = ClusterSeries(STEPS, {}, {ONE: at(0, 1, value=90.0), TWO: at(0, value=10.0)})
    course = workload_series({ONE: 1.0, TWO: 1.0}, {ONE: 3.0, TWO: 1.0}, courses)
    assert course.gpu_pct is not None
    assert course.gpu_pct[:2] == pytest.approx([70.0, 90.0])
    assert np.isnan(course.cpu_pct).all()


def test_times_beside_the_window_do_not_count():
    courses = ClusterSeries(STEPS, {ONE: at(-1, SAMPLES, value=1.0) | {1000.4: 1.0}}, {})
    course = workload_series({ONE: 2.0}, {}, courses)
    assert course.cpu_pct[0] == 50.0
    assert np.isnan(course.cpu_pct[1:]).all()
