"""Where libfuse comes from; nothing is downloaded here."""

from pathlib import Path

import pytest

from joulie_lab.control_plane import fuse
from joulie_lab.control_plane.tools import BinariesError, Report


def test_this_machine_s_library_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse, "find_library", lambda _name: "libfuse3.so.3")
    assert fuse.obtain_libfuse(print) == "libfuse3.so.3"


def test_the_package_is_fetched_into_the_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fuse, "find_library", lambda _name: None)
    monkeypatch.setattr(fuse, "_version", lambda tree: str(fuse._library(tree)))

    def fetch(folder: Path, _report: Report) -> Path:
        (folder / "tree/usr/lib").mkdir(parents=True)
        (folder / "tree/usr/lib/libfuse3.so.3").touch()
        return folder / "tree"

    environment = {"JOULIE_CONTROL_PLANE_DIR": str(tmp_path)}
    library = Path(fuse.obtain_libfuse(lambda _line: None, environment=environment, fetch=fetch))
    assert library.name == "libfuse3.so.3"
    assert library.is_relative_to(tmp_path)


def test_a_package_without_the_library_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fuse, "find_library", lambda _name: None)

    def fetch(folder: Path, _report: Report) -> Path:
        (folder / "tree").mkdir()
        return folder / "tree"

    with pytest.raises(BinariesError, match=r"there is no libfuse3\.so"):
        fuse.obtain_libfuse(lambda _line: None, environment={"JOULIE_CONTROL_PLANE_DIR": str(tmp_path)}, fetch=fetch)


def test_the_second_package_name_is_tried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked = []

    def fetch_packages(package: str, folder: Path, _report: Report, *, what_to_do: str) -> Path:
        asked.append(package)
        if package == "libfuse3-3":
            raise BinariesError(what_to_do)
        return folder

    monkeypatch.setattr(fuse, "fetch_packages", fetch_packages)
    assert fuse.fetch_libfuse(tmp_path, print) == tmp_path
    assert asked == ["libfuse3-3", "libfuse3-4"]
