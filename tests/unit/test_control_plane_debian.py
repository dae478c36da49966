"""Debian's packages, unpacked into the cache; nothing is downloaded here: the commands are small scripts."""

import os
import threading
from pathlib import Path

import pytest

from joulie_lab.control_plane.debian import fetch_packages, keep, run_command
from joulie_lab.control_plane.tools import BinariesError, Report
from support.fetched_programs import Fetcher, quiet, write_program

RUNS = "#!/bin/sh\necho 'tool 9.8'\n"
ADVICE = "Do this."


def fetcher() -> Fetcher:
    return Fetcher("tool", {"tool": RUNS})


def version(program: Path) -> str:
    return run_command([str(program)], program.parent).strip()


def test_two_at_once_fetch_once(tmp_path: Path) -> None:
    inside, told = threading.Event(), threading.Event()
    fetch = fetcher()
    place = tmp_path / "cache/tool"

    def slow(folder: Path, report: Report) -> Path:
        inside.set()
        assert told.wait(10), "the other one never said that it waits"
        return fetch(folder, report)

    def second_report(line: str) -> None:
        assert line.startswith("waiting for another build into ")
        told.set()

    def kept(report: Report) -> None:
        keep(place, report, fetch=slow, try_out=version, what_to_do=ADVICE)

    first = threading.Thread(target=kept, args=(quiet,))
    first.start()
    assert inside.wait(10)
    kept(second_report)
    first.join()
    assert fetch.fetched == 1


def test_what_no_longer_runs_is_fetched_anew(tmp_path: Path) -> None:
    place = write_program(tmp_path / "cache/tool", "#!/bin/sh\nexit 1\n")
    lines: list[str] = []
    keep(place, lines.append, fetch=fetcher(), try_out=version, what_to_do=ADVICE)
    assert place.read_text() == RUNS
    assert lines == [f"tool 9.8: {place}"]


# apt-get's last word is what it shall do; lists of its own are told by an option.
UNPACK = '#!/bin/sh\nmkdir -p unpacked && cat "$2" >> unpacked/content\n'
KNOWS = '#!/bin/sh\nfor word; do :; done; [ "$word" = tool ] && echo content > tool_9.8_amd64.deb\n'
NEEDS_LISTS = (
    "#!/bin/sh\n"
    "for word; do :; done\n"
    'case "$*" in\n'
    "*Dir::State::lists*update) echo \"W: Temporary failure resolving 'deb.debian.org'\" ;;\n"
    "*Dir::State::lists*) {then} ;;\n"
    "*) echo old > tool_9.7_amd64.deb; echo 'E: Unable to locate package tool' >&2; exit 100 ;;\n"
    "esac\n"
)


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "commands"
    write_program(folder / "dpkg-deb", UNPACK)
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return folder


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    return tmp_path / "target"


def test_the_package_is_unpacked(commands: Path, target: Path) -> None:
    write_program(commands / "apt-get", KNOWS)
    lines: list[str] = []
    tree = fetch_packages("tool", target, lines.append, what_to_do=ADVICE)
    assert (tree / "content").read_text() == "content\n"
    assert lines == ["tool: fetching Debian's package; nothing is installed"]


def test_a_machine_without_lists_of_packages_gets_lists_for_this_once(commands: Path, target: Path) -> None:
    write_program(commands / "apt-get", NEEDS_LISTS.format(then="echo content > tool_9.8_amd64.deb"))
    lines: list[str] = []
    tree = fetch_packages("tool", target, lines.append, what_to_do=ADVICE)
    assert (tree / "content").read_text() == "content\n", "what old lists led to is not unpacked"
    assert lines[1].startswith("tool: not by this machine's lists of packages: fetching lists of our own")
    assert (target / "lists/partial").is_dir()


def test_without_a_network_the_error_has_the_cause_and_says_what_to_do(commands: Path, target: Path) -> None:
    write_program(commands / "apt-get", NEEDS_LISTS.format(then="echo 'E: Unable to locate package'; exit 100"))
    with pytest.raises(
        BinariesError, match=r"Unable to locate package(.|\n)*Temporary failure resolving(.|\n)*Do this\."
    ):
        fetch_packages("tool", target, quiet, what_to_do=ADVICE)
    with pytest.raises(BinariesError, match="Unable to locate package"):
        fetch_packages("tool", target, quiet, what_to_do=ADVICE)  # as of another name, in the same folder


def test_a_choice_of_nothing_is_an_error_that_has_what_apt_said(commands: Path, target: Path) -> None:
    write_program(commands / "apt-get", "#!/bin/sh\necho 'tool is already the newest version'\n")
    with pytest.raises(BinariesError, match=r"apt would install none of it here: tool is already(.|\n)*Do this\."):
        fetch_packages("tool", target, quiet, what_to_do=ADVICE, choose=lambda name: True)


@pytest.mark.parametrize("missing", ["apt-get", "dpkg-deb"])
def test_a_machine_that_is_no_debian_is_told_what_to_do(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    write_program(tmp_path / "bin" / ("dpkg-deb" if missing == "apt-get" else "apt-get"), RUNS)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(
        BinariesError, match=rf"tool is not on this machine, and no {missing} to fetch it with\. Do this"
    ):
        fetch_packages("tool", target, quiet, what_to_do=ADVICE)
