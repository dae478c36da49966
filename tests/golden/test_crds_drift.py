"""The CRDs in the chart are those that the types give."""

from pathlib import Path

from joulie_lab.adapters import crd

FOLDER = Path(__file__).parents[2] / "deploy" / "helm" / "joulie" / "files" / "crds"


def test_committed_crds_match_the_types() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    assert committed == crd.files(), f"run: python -m joulie_lab.adapters.crd {FOLDER.relative_to(Path.cwd())}"
