"""The page of a replay: one self-contained file without scripts, which begins with the model's error."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from joulie import __version__
from joulie.domain.units import WATTS_PER_KW, FloatArray
from joulie_lab.apps.replay.cells import error_sentence, forecast_cells, headline
from joulie_lab.apps.replay.run import Replay

_WIDTH, _HEIGHT = 1000.0, 220.0


def render(result: Replay, name: str) -> str:
    """Render the page.

    Args:
        result: the replay.
        name: name of the recording.
    """
    environment = Environment(
        loader=PackageLoader("joulie_lab.simulation.report"), autoescape=True, undefined=StrictUndefined
    )
    judged = result.judged
    measured_w, predicted_w = judged.hourly_w
    top_w = float(np.nanmax(np.concatenate([measured_w, predicted_w])))
    return environment.get_template("replay.html").render(
        version=__version__,
        name=name,
        headline=headline(result),
        sentence=error_sentence(judged.held_out),
        errors=[
            ("fitted model, second half", judged.held_out),
            ("fitted model, first half, where it was fitted", judged.fitting),
            ("catalogue, second half", judged.catalogue),
        ],
        lines=[(label, _paths(values, top_w)) for label, values in (("measured", measured_w), ("model", predicted_w))],
        top_kw=top_w / WATTS_PER_KW,
        split=_WIDTH * judged.fitted_hours / len(measured_w),
        by_hour=list(enumerate(judged.held_out.by_hour)),
        worst=judged.worst_nodes,
        rows=[forecast_cells(one) for one in result.forecasts],
        uncertainties=[(one.policy, one.uncertainty) for one in result.forecasts if one.uncertainty],
        result=result,
    )


def _paths(values_w: FloatArray, top_w: float) -> Sequence[str]:
    """Points of polylines; a gap ends one and begins another."""
    paths: list[str] = []
    points: list[str] = []
    for hour, value in enumerate(values_w.tolist()):
        if np.isnan(value):
            paths, points = [*paths, " ".join(points)], []
        else:
            points.append(f"{_WIDTH * (hour + 0.5) / len(values_w):.1f},{_HEIGHT * (1.0 - value / top_w):.1f}")
    return [path for path in (*paths, " ".join(points)) if path]
