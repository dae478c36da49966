"""Small scripts that stand for programs, and for what fetches them: nothing is downloaded."""

from collections.abc import Mapping
from pathlib import Path

from joulie_lab.control_plane.tools import Report


def write_program(path: Path, text: str) -> Path:
    """Write a program, with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def quiet(line: str) -> None:
    """A report to nobody."""
    del line


class Fetcher:
    """Stands in for apt, and counts.

    Attributes:
        fetched: how often it was asked.
    """

    def __init__(self, place: str, programs: Mapping[str, str]) -> None:
        """Fetch programs, by path in the given folder; `place` in it is what is told to be kept."""
        self.fetched = 0
        self._place = place
        self._programs = programs

    def __call__(self, folder: Path, report: Report) -> Path:
        """Fetch into the folder."""
        del report
        self.fetched += 1
        for path, text in self._programs.items():
            write_program(folder / path, text)
        return folder / self._place
