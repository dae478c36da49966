"""Where the tests' Prometheus comes from; nothing is downloaded here: the commands are small scripts."""

import os
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest

from joulie.adapters.control_plane.prometheus import fetch_debian_package, obtain_prometheus
from joulie.adapters.control_plane.tools import BinariesError, Report

RUNS = "#!/bin/sh\necho 'prometheus, version 9.8 (branch: x)'\n"


def write_program(path: Path, text: str = RUNS) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def quiet(line: str) -> None:
    del line


class Fetcher:
    """Stands in for apt, and counts."""

    def __init__(self, text: str = RUNS) -> None:
        self.fetched = 0
        self._text = text

    def __call__(self, folder: Path, report: Report) -> Path:
        del report
        self.fetched += 1
        return write_program(folder / "unpacked/prometheus", self._text)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"JOULIE_CONTROL_PLANE_DIR": str(tmp_path / "cache"), "PATH": str(tmp_path / "bin")}


def test_what_is_nowhere_is_fetched_once_into_the_cache(environment: Mapping[str, str], tmp_path: Path) -> None:
    fetch, lines = Fetcher(), list[str]()
    program = obtain_prometheus(lines.append, environment=environment, fetch=fetch)
    assert program.parent.parent == tmp_path / "cache"
    assert program.read_text() == RUNS
    assert lines == [f"prometheus, version 9.8: {program}"]
    assert obtain_prometheus(quiet, environment=environment, fetch=fetch) == program
    assert fetch.fetched == 1
    assert sorted(path.name for path in program.parent.iterdir()) == [".lock", "prometheus"]


def test_a_named_program_comes_before_the_path_and_the_path_before_the_cache(
    environment: dict[str, str], tmp_path: Path
) -> None:
    cached = obtain_prometheus(quiet, environment=environment, fetch=Fetcher())
    installed = write_program(tmp_path / "bin/prometheus")
    named = write_program(tmp_path / "mine")
    fetch = Fetcher()
    assert obtain_prometheus(quiet, environment=environment | {"JOULIE_PROMETHEUS": str(named)}, fetch=fetch) == named
    assert obtain_prometheus(quiet, environment=environment, fetch=fetch) == installed
    installed.unlink()
    assert obtain_prometheus(quiet, environment=environment, fetch=fetch) == cached
    assert not fetch.fetched


def test_a_named_program_that_is_none_is_an_error_that_says_what_to_do(environment: dict[str, str]) -> None:
    with pytest.raises(BinariesError, match=r"JOULIE_PROMETHEUS=/nowhere: no such program; name one, or unset it"):
        obtain_prometheus(quiet, environment=environment | {"JOULIE_PROMETHEUS": "/nowhere"}, fetch=Fetcher())


def test_a_program_that_does_not_run_here_is_not_kept(environment: Mapping[str, str], tmp_path: Path) -> None:
    broken = Fetcher("#!/bin/sh\necho 'GLIBC_2.99 not found'\nexit 1\n")
    with pytest.raises(BinariesError, match=r"does not run here: (.|\n)*GLIBC_2\.99(.|\n)*set JOULIE_PROMETHEUS"):
        obtain_prometheus(quiet, environment=environment, fetch=broken)
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == [".lock"]


def test_two_at_once_fetch_once(environment: Mapping[str, str]) -> None:
    inside, told = threading.Event(), threading.Event()
    fetch = Fetcher()

    def slow(folder: Path, report: Report) -> Path:
        inside.set()
        assert told.wait(10), "the other one never said that it waits"
        return fetch(folder, report)

    def second_report(line: str) -> None:
        assert line.startswith("waiting for another build into ")
        told.set()

    first = threading.Thread(
        target=obtain_prometheus, args=(quiet,), kwargs={"environment": environment, "fetch": slow}
    )
    first.start()
    assert inside.wait(10)
    obtain_prometheus(second_report, environment=environment, fetch=slow)
    first.join()
    assert fetch.fetched == 1


# apt-get's last word is what it shall do; lists of its own are told by an option.
UNPACK = '#!/bin/sh\nmkdir -p unpacked/usr/bin && cp "$2" unpacked/usr/bin/prometheus\n'
KNOWS = '#!/bin/sh\nfor word; do :; done; [ "$word" = prometheus ] && echo content > prometheus_9.8_amd64.deb\n'
NEEDS_LISTS = (
    "#!/bin/sh\n"
    "for word; do :; done\n"
    'case "$*" in\n'
    "*Dir::State::lists*update) echo \"W: Temporary failure resolving 'deb.debian.org'\" ;;\n"
    "*Dir::State::lists*) {then} ;;\n"
    "*) echo 'E: Unable to locate package prometheus' >&2; exit 100 ;;\n"
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
    assert fetch_debian_package(target, lines.append).read_text() == "content\n"
    assert lines == ["prometheus: fetching Debian's package; nothing is installed"]


def test_a_machine_without_lists_of_packages_gets_lists_for_this_once(commands: Path, target: Path) -> None:
    write_program(commands / "apt-get", NEEDS_LISTS.format(then="echo content > prometheus_9.8_amd64.deb"))
    lines: list[str] = []
    assert fetch_debian_package(target, lines.append).read_text() == "content\n"
    assert lines[1].startswith("prometheus: not by this machine's lists of packages: fetching lists of our own")
    assert (target / "lists/partial").is_dir()


def test_without_a_network_the_error_has_the_cause_and_says_what_to_do(commands: Path, target: Path) -> None:
    write_program(commands / "apt-get", NEEDS_LISTS.format(then="echo 'E: Unable to locate package'; exit 100"))
    with pytest.raises(
        BinariesError,
        match=r"Unable to locate package(.|\n)*Temporary failure resolving(.|\n)*on the PATH, or set JOULIE_PROMETHEUS",
    ):
        fetch_debian_package(target, quiet)


@pytest.mark.parametrize("missing", ["apt-get", "dpkg-deb"])
def test_a_machine_that_is_no_debian_is_told_what_to_do(
    tmp_path: Path, target: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    write_program(tmp_path / "bin" / ("dpkg-deb" if missing == "apt-get" else "apt-get"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(BinariesError, match=rf"no prometheus on the PATH, and no {missing} .*set JOULIE_PROMETHEUS"):
        fetch_debian_package(target, quiet)
