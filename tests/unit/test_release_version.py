"""One version: of both packages, of the laboratory's pin, and of the chart."""

from __future__ import annotations

import importlib.util
import shutil
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from joulie import __version__

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release_version", ROOT / "scripts/release/version.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def tree(script: ModuleType, tmp_path: Path) -> Path:
    """A copy of the files that hold the version."""
    for name, _ in script.PLACES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def test_there_is_one_version(script: ModuleType) -> None:
    assert set(script.versions().values()) == {__version__}
    lock = tomllib.loads((ROOT / "uv.lock").read_text(encoding="utf-8"))
    (laboratory,) = (package for package in lock["package"] if package["name"] == "joulie-lab")
    assert laboratory["version"] == __version__, "run: make version VERSION=" + __version__


def test_it_is_set_everywhere_and_nowhere_else(script: ModuleType, tree: Path) -> None:
    before = {name: (tree / name).read_text() for name, _ in script.PLACES}
    script.set_version("12.3.45", tree)
    assert set(script.versions(tree).values()) == {"12.3.45"}
    assert {name: (tree / name).read_text().replace("12.3.45", __version__) for name in before} == before


@pytest.mark.parametrize("version", ["", "1.2", "v1.2.3", "1.2.3rc1", "1.02.3", "1.2.3\n"])
def test_only_versions_that_python_helm_and_krew_read_alike(script: ModuleType, tree: Path, version: str) -> None:
    with pytest.raises(ValueError, match=r"must be MAJOR\.MINOR\.PATCH"):
        script.set_version(version, tree)
    assert set(script.versions(tree).values()) == {__version__}
