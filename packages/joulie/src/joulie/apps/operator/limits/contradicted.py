"""The event about a job whose claimed progress its GPUs contradict."""

from __future__ import annotations

from statistics import median

from joulie.apps.operator.limits.jobs import HZ_PER_MHZ
from joulie.apps.operator.limits.measure import Measured
from joulie.domain.capping.choice import Reason
from joulie.domain.capping.knobs import TunedJob


def contradiction(metric: str, before: TunedJob, after: TunedJob, measured: Measured) -> str:
    """Why the limit of a job was taken back, in words, where its progress was doubted in this window; empty otherwise.

    Args:
        metric: where the progress comes from; empty for the query of the settings.
        before: its search before the window.
        after: the same after it.
        measured: the window.
    """
    if after.active.problem != Reason.CONTRADICTED or before.active.problem == Reason.CONTRADICTED:
        return ""
    search = before.active
    free = [
        (window.progress_per_s, window.counted_per_s, window.power_w)
        for window in search.trials.windows
        if window.limit_w == search.job.baseline_w
    ]
    names = (metric or "progress", "its GPUs' memory traffic", "their power")
    now = (measured.progress_per_s, measured.counted_per_s, measured.power_w)
    changes = [
        f"{name} by {value / median(known) - 1.0:+.1%}"
        for name, value, seen in zip(names, now, zip(*free, strict=True), strict=True)
        if value is not None and (known := [one for one in seen if one is not None])
    ]
    mhz = before.max_sm_hz
    limit = f"{before.limit_w:.0f} W" if mhz is None else f"{mhz / HZ_PER_MHZ:.0f} MHz"
    return (
        f"{Reason.CONTRADICTED}: under a limit of {limit} there was a change of {', of '.join(changes)}; the limit was"
        " taken back, for good unless the next window shows that the job has changed"
    )
