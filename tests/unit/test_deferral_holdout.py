"""What waiting saves, by workloads that were left alone by chance."""

import msgspec
import numpy as np
import pytest

from joulie.adapters.kubernetes.api.meta import OwnerReference
from joulie.adapters.kubernetes.pods import Owner
from joulie.apps.accounting.facts import AccountedPod
from joulie.apps.accounting.holdout import DeferralHoldout, DeferralMemory, Draw
from joulie.domain.accounting.holdout_evidence import EvidenceByMonth
from joulie.domain.accounting.records import CompletedPod, Energy, PodMeta
from joulie.domain.grid import names
from joulie.domain.trial.holdout import MIN_LEFT_OUT, left_out

KWH = 3.6e6
SHARE = 0.2


def job_of(number, alone):
    """UID of a Job that chance leaves alone, or does not."""
    return next(uid for extra in range(1000) if left_out(uid := f"job-{number}-{extra}", SHARE) is alone)


def run(number, *, alone, energy_kwh=1.0, g_per_kwh=300.0, initial=300.0, succeeded=True, **other):
    """A pod that ended, at an intensity, of one that came at another, as accounting knows it."""
    uid, workload = f"pod-{number}", other.get("workload", "train")
    note = other.get("note", f"{'left-alone' if alone else 'waits'} {SHARE}")
    annotations = {names.HOLDOUT: note, names.INITIAL_CARBON_INTENSITY: f"{initial}"}
    controller = OwnerReference("batch/v1", "Job", "train", other.get("job", job_of(number, alone)))
    pod = AccountedPod(
        uid, "ml", uid, "n", Owner("Job", workload), controller, succeeded=succeeded, annotations=annotations
    )
    energy = Energy(
        energy_j=energy_kwh * KWH,
        emissions_g=energy_kwh * g_per_kwh,
        energy_without_intensity_j=other.get("unknown_j", 0.0),
    )
    return CompletedPod(PodMeta(uid, "ml", uid, "Job", workload), 0.0, 1.0, energy), {uid: pod}


def take_in(holdout, *arguments, **named):
    done, pods = run(*arguments, **named)
    holdout.completed([done], pods)


def test_waiting_is_measured_by_what_pods_emitted():
    holdout, rng = DeferralHoldout(), np.random.default_rng(3)
    for number in range(600):
        alone, initial = bool(rng.random() < SHARE), float(rng.uniform(200.0, 400.0))
        ran_at = initial if alone else 0.8 * initial
        take_in(holdout, number, alone=alone, energy_kwh=rng.lognormal(0.0, 0.1), g_per_kwh=ran_at, initial=initial)
    evidence = holdout.evidence.now
    assert evidence.units == 599, "of the first pod of a workload nothing is known to compare it with"
    assert evidence.left_out > MIN_LEFT_OUT
    assert evidence.interval.low < 0.2 < evidence.interval.high
    assert evidence.interval.high - evidence.interval.low < 0.15


def test_pods_that_say_nothing_do_not_count():
    holdout = DeferralHoldout()
    take_in(holdout, 0, alone=False)
    take_in(holdout, 1, alone=True)
    assert holdout.evidence.now.units == 1
    for number, odd in enumerate(
        (
            {"succeeded": False},
            {"energy_kwh": 0.0},
            {"unknown_j": 1.0},
            {"note": "left-alone"},
            {"note": "left-alone nan"},
            {"note": "somehow 0.2"},
            {"initial": "unknown"},
            {"job": job_of(1, True)},  # the same run as one that counted
            {"job": job_of(9, False)},  # chance had said otherwise
            {"workload": "new"},  # nothing to compare with
        )
    ):
        take_in(holdout, 2 + number, **({"alone": True} | odd))
    assert holdout.evidence.now.units == 1
    holdout.completed([run(99, alone=True)[0]], {})
    assert holdout.evidence.now.units == 1


def test_the_next_program_counts_as_if_it_had_never_ended():
    def course(*, restarted_after):
        holdout, rng = DeferralHoldout(), np.random.default_rng(4)
        for number in range(60):
            if number == restarted_after:
                kept, memory = holdout.evidence.text(), msgspec.json.encode(holdout.memory)
                holdout = DeferralHoldout()
                holdout.evidence = EvidenceByMonth.parse(kept)
                holdout.restore(msgspec.json.decode(memory, type=DeferralMemory))
            workload, energy_kwh = f"train-{number % 3}", rng.lognormal(0.0, 0.1)
            # Two pods of each run end, one on either side of the restart.
            take_in(
                holdout, number, alone=False, job=job_of(number // 2, False), workload=workload, energy_kwh=energy_kwh
            )
        return holdout.evidence, holdout.memory

    assert course(restarted_after=31) == course(restarted_after=None)


@pytest.mark.parametrize(
    "memory",
    [
        DeferralMemory((0.0, 0.0, 0.0, 1.0), [], []),
        DeferralMemory((float("nan"), 0.0, 1.0, 1.0), [], []),
        DeferralMemory((0.0, 0.0, 1.0, 1.0), [("ml", "Job", "a", float("inf"), 1.0)], []),
        DeferralMemory((0.0, 0.0, 1.0, 1.0), [("ml", "Job", "a", 1.0, -1.0)], []),
    ],
)
def test_a_memory_that_cannot_be_is_refused(memory):
    with pytest.raises(ValueError, match="cannot be"):
        DeferralHoldout().restore(memory)


@pytest.mark.parametrize(
    ("note", "draw"),
    [("waits 0.05", Draw(False, 0.05)), ("left-alone 0.5", Draw(True, 0.5)), ("waits 1", None), ("", None)],
)
def test_a_draw_is_read_as_it_was_noted(note, draw):
    assert Draw.noted({names.HOLDOUT: note}) == draw
