"""`joulie bench fidelity`: runs on a control plane beside native ones, and the ranges that they must keep."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from joulie.apps.cli.main import main
from joulie_lab.apps.experiment.artefacts import Artefacts, FinishedRun, Provenance
from joulie_lab.simulation.experiment.files import load_experiment
from joulie_lab.simulation.experiment.outcome import Outcome
from joulie_lab.simulation.experiment.plan import PhysicsChoice, RunKey
from support.experiment_outcomes import outcome

RANGES = """\
full:
  - {metric: agreement.work_pct, max: 1.0, why: target}
  - {metric: agreement.saving_points.B.mean, min: -1.0, max: 1.0, why: target}
small: []
"""


def joulie(*arguments: object) -> object:
    with pytest.raises(SystemExit) as caught:
        main([*map(str, arguments)])
    return caught.value.code


def folder(place: Path, *, on: str = "native", seeds: tuple[int, ...] = (1,), **runs: Outcome) -> Path:
    """An artefact folder with the same outcome for each seed of a variant."""
    artefacts = Artefacts(place)
    scale = None if on == "native" else 15.0
    artefacts.begin(load_experiment("hetero-41"), on, scale)
    for variant, found in runs.items():
        for seed in seeds:
            artefacts.add(FinishedRun(RunKey(variant, seed, PhysicsChoice()), found, Provenance(on, "", 1.0, scale)))
    return place


@pytest.mark.slow
@pytest.mark.parametrize(("plane_kwh", "status"), [(9.95, 0), (9.0, 1)])
def test_a_saving_that_differs_too_much_misses_its_range(
    plane_kwh: float, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Natively B saves a sixth of 12 kWh; on the control plane as much, or a quarter."""
    ranges, found = tmp_path / "ranges.yaml", tmp_path / "found.json"
    ranges.write_text(RANGES)
    native = folder(tmp_path / "native", A=outcome(), B=outcome(it_j=10.0 * 3.6e6))
    plane = folder(tmp_path / "plane", on="control-plane", A=outcome(), B=outcome(it_j=plane_kwh * 3.6e6))
    assert joulie("bench", "fidelity", native, plane, native, "--json", found, "--ranges", ranges) == status
    told = capsys.readouterr()
    assert f"{2 - status} of 2 ranges of {ranges} hold" in told.out
    assert ("missed: agreement.saving_points.B.mean" in told.err) is bool(status)
    report = json.loads(found.read_text())
    assert len(report["missed"]) == status
    assert report["agreement"]["saving_points"]["B"]["mean"] == pytest.approx((10.0 - plane_kwh) / 0.12)
    assert report["agreement"]["kept"] == 2 - status


def test_ranges_that_cannot_be_read_are_told_before_anything_is_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nowhere = tmp_path / "nowhere"
    assert joulie("bench", "fidelity", nowhere, nowhere, nowhere, "--json", "-", "--ranges", nowhere) == 2
    assert "nowhere" in capsys.readouterr().err
