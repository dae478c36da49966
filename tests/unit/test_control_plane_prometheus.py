"""Where the tests' Prometheus comes from; nothing is downloaded here: the commands are small scripts."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from joulie_lab.control_plane.prometheus import obtain_prometheus
from joulie_lab.control_plane.tools import BinariesError
from support.fetched_programs import Fetcher, quiet, write_program

RUNS = "#!/bin/sh\necho 'prometheus, version 9.8 (branch: x)'\n"


def fetcher(text: str = RUNS) -> Fetcher:
    return Fetcher("unpacked/prometheus", {"unpacked/prometheus": text})


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    return {"JOULIE_CONTROL_PLANE_DIR": str(tmp_path / "cache"), "PATH": str(tmp_path / "bin")}


def test_what_is_nowhere_is_fetched_once_into_the_cache(environment: Mapping[str, str], tmp_path: Path) -> None:
    fetch, lines = fetcher(), list[str]()
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
    cached = obtain_prometheus(quiet, environment=environment, fetch=fetcher())
    installed = write_program(tmp_path / "bin/prometheus", RUNS)
    named = write_program(tmp_path / "mine", RUNS)
    fetch = fetcher()
    assert obtain_prometheus(quiet, environment=environment | {"JOULIE_PROMETHEUS": str(named)}, fetch=fetch) == named
    assert obtain_prometheus(quiet, environment=environment, fetch=fetch) == installed
    installed.unlink()
    assert obtain_prometheus(quiet, environment=environment, fetch=fetch) == cached
    assert not fetch.fetched


def test_a_named_program_that_is_none_is_an_error_that_says_what_to_do(environment: dict[str, str]) -> None:
    with pytest.raises(BinariesError, match=r"JOULIE_PROMETHEUS=/nowhere: no such program; name one, or unset it"):
        obtain_prometheus(quiet, environment=environment | {"JOULIE_PROMETHEUS": "/nowhere"}, fetch=fetcher())


def test_a_program_that_does_not_run_here_is_not_kept(environment: Mapping[str, str], tmp_path: Path) -> None:
    broken = fetcher("#!/bin/sh\necho 'GLIBC_2.99 not found'\nexit 1\n")
    with pytest.raises(BinariesError, match=r"does not run here: (.|\n)*GLIBC_2\.99(.|\n)*set JOULIE_PROMETHEUS"):
        obtain_prometheus(quiet, environment=environment, fetch=broken)
    assert [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()] == [".lock"]
