"""The order of the suite, and the report on its first part."""

from types import SimpleNamespace
from typing import Any

import pytest

from support.suite_order import LONGEST_FIRST, FirstPartReport, rank

UNIT, OTHER, PLANE = (
    "tests/unit/test_a.py::test_x",
    "tests/unit/test_b.py::test_y[1]",
    "tests/control_plane/test_c.py::z",
)


class Terminal:
    """Keeps the lines that are written."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def ensure_newline(self) -> None:
        """A line is a line here."""

    def write_line(self, line: str, **markup: bool) -> None:
        self.lines.append(line)


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


@pytest.fixture
def report(terminal: Terminal) -> FirstPartReport:
    config: Any = SimpleNamespace(pluginmanager=SimpleNamespace(get_plugin=lambda name: terminal))
    return FirstPartReport(config)


def ended(report: FirstPartReport, node_id: str, *, call: str = "passed", setup: str = "passed") -> None:
    for when, outcome in (("setup", setup), ("call", call)):
        told = SimpleNamespace(
            nodeid=node_id,
            when=when,
            outcome=outcome,
            passed=outcome == "passed",
            failed=outcome == "failed",
            longrepr="assert 1 == 2\nmore",
        )
        report.pytest_runtest_logreport(told)
    report.pytest_runtest_logfinish(node_id)


def test_control_planes_come_last_and_long_files_first() -> None:
    first, *_, last = LONGEST_FIRST
    ids = [f"{last}::t", PLANE, UNIT, OTHER, f"{first}::t"]
    assert sorted(ids, key=rank) == [f"{first}::t", UNIT, OTHER, f"{last}::t", PLANE]


def test_files_that_take_long_exist(pytestconfig: pytest.Config) -> None:
    assert [file for file in LONGEST_FIRST if not (pytestconfig.rootpath / file).is_file()] == []


def test_the_first_part_is_reported_when_it_is_done(report: FirstPartReport, terminal: Terminal) -> None:
    report.expect([UNIT, OTHER, PLANE])
    ended(report, UNIT)
    ended(report, PLANE, call="failed")
    assert terminal.lines == []
    ended(report, OTHER)
    (line,) = terminal.lines
    assert line.startswith("without a control plane: 2 passed in ")


def test_failures_of_the_first_part_are_named_at_once(report: FirstPartReport, terminal: Terminal) -> None:
    report.expect([UNIT, OTHER, PLANE])
    ended(report, UNIT, call="failed")
    ended(report, OTHER)
    assert terminal.lines[0] == f"FAILED {UNIT} - assert 1 == 2"
    assert terminal.lines[1].startswith("without a control plane: 1 failed, 1 passed in ")


def test_one_part_alone_needs_no_report(report: FirstPartReport, terminal: Terminal) -> None:
    report.expect([UNIT, OTHER])
    ended(report, UNIT)
    ended(report, OTHER)
    assert terminal.lines == []
