"""Where Kueue's definitions come from; nothing is downloaded here: the Go of these tests is a small script."""

import os
import re
from pathlib import Path

import pytest

from joulie_lab.control_plane import go_build
from joulie_lab.control_plane.kueue import (
    DEFINITIONS,
    KUEUE_MODULE,
    KUEUE_VERSION,
    fetch_kueue,
    obtain_kueue_definitions,
)
from joulie_lab.control_plane.tools import BinariesError, Report


def quiet(line: str) -> None:
    del line


class Fetcher:
    """Stands in for Go: a module with some definitions, and counts."""

    def __init__(self, module: Path, plurals: tuple[str, ...] = (*DEFINITIONS, "cohorts")) -> None:
        self.fetched = 0
        self._module = module
        bases = module / "config/components/crd/bases"
        bases.mkdir(parents=True)
        for plural in plurals:
            (bases / f"kueue.x-k8s.io_{plural}.yaml").write_text(plural)

    def __call__(self, root: Path, report: Report) -> Path:
        del root, report
        self.fetched += 1
        return self._module


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"JOULIE_CONTROL_PLANE_DIR": str(tmp_path / "cache")}


def test_definitions_are_fetched_once_and_no_more_of_them_than_are_needed(
    environment: dict[str, str], tmp_path: Path
) -> None:
    fetch = Fetcher(tmp_path / "module")
    folder = obtain_kueue_definitions(quiet, environment=environment, fetch=fetch)
    assert folder == tmp_path / "cache" / f"kueue-{KUEUE_VERSION}"
    assert {path.name: path.read_text() for path in folder.glob("*.yaml")} == {
        "admissionchecks.yaml": "admissionchecks",
        "multikueueclusters.yaml": "multikueueclusters",
        "multikueueconfigs.yaml": "multikueueconfigs",
        "workloads.yaml": "workloads",
    }
    assert obtain_kueue_definitions(quiet, environment=environment, fetch=fetch) == folder
    assert fetch.fetched == 1
    (folder / "workloads.yaml").unlink()
    obtain_kueue_definitions(quiet, environment=environment, fetch=fetch)
    assert fetch.fetched == 2


def test_a_module_without_them_is_an_error_and_leaves_nothing_that_looks_whole(
    environment: dict[str, str], tmp_path: Path
) -> None:
    fetch = Fetcher(tmp_path / "module", DEFINITIONS[:-1])
    for _ in range(2):
        with pytest.raises(BinariesError, match=r"kueue v\S+ has no config/\S+/kueue\.x-k8s\.io_workloads\.yaml"):
            obtain_kueue_definitions(quiet, environment=environment, fetch=fetch)


def test_the_packaged_go_mod_pins_the_version_and_its_content() -> None:
    folder = go_build._MODULES / "kueue"
    pinned = re.escape(f"{KUEUE_MODULE} {KUEUE_VERSION}")
    assert re.search(rf"^require {pinned}$", (folder / "go.mod").read_text(), re.M)
    assert re.search(rf"^{pinned} h1:\S+=$", (folder / "go.sum").read_text(), re.M)


def go_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str) -> None:
    program = tmp_path / "bin/go"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\ncase "$1" in\nenv) echo go1.26.0 ;;\nmod) {answer} ;;\nesac\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)


def test_go_fetches_the_module_beside_the_checksums(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_that(
        tmp_path,
        monkeypatch,
        f'echo "$* $GOPROXY" > {tmp_path}/said; cat go.sum >> {tmp_path}/said; echo \'{{"Dir": "/there"}}\'',
    )
    monkeypatch.setenv("GOPROXY", "https://proxy.example")
    assert fetch_kueue(tmp_path, quiet) == Path("/there")
    said = (tmp_path / "said").read_text()
    assert said.startswith(f"mod download -json {KUEUE_MODULE} https://proxy.example\n")
    assert f"{KUEUE_MODULE} {KUEUE_VERSION} h1:" in said


def test_what_go_says_is_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_that(tmp_path, monkeypatch, "echo '{\"Error\": \"403 Forbidden\"}'; echo 'checksum mismatch' >&2; exit 1")
    with pytest.raises(
        BinariesError, match=r"kueue cannot be had; GOPROXY (.|\n)*403 Forbidden(.|\n)*checksum mismatch"
    ):
        fetch_kueue(tmp_path, quiet)
