"""What holds for all tests."""

import gc
import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from joulie_lab.control_plane.node.prepared import FOLDER_VARIABLE
from support.suite_order import FirstPartReport, rank

# Machines are shared and slow at times: how long an example takes says nothing about the code.
settings.register_profile("joulie", deadline=None)
settings.load_profile("joulie")


def pytest_configure(config: pytest.Config) -> None:
    """Report the tests that need no control plane as soon as they are done; in the process that people see."""
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(FirstPartReport(config))


def pytest_report_header() -> str | None:
    """Say that the tests of a real node are left out, where they are."""
    if FOLDER_VARIABLE in os.environ:
        return None
    return "left out: tests/node, which need root and Debian; `make node` runs them"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run what needs no control plane first, and in each part what takes long."""
    items.sort(key=lambda item: rank(item.nodeid))


def pytest_collection() -> None:
    """Look for no garbage in a million objects of which none becomes any: it is a quarter of the collection's time."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Never again traverse what all tests share, a million objects: looking for garbage is 6 % of their time else."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="module", autouse=True)
def _garbage_is_collected() -> Iterator[None]:
    """What a test leaves open, pytest reports once it is garbage: in the file of that test, not in any later one."""
    yield
    gc.collect()
    gc.freeze()  # what outlives the file is looked at by none of the hundreds after it


@pytest.fixture(autouse=True)
def _logging_as_found() -> Iterator[None]:
    """A test that runs a program in this process leaves its logging to nobody else."""
    root = logging.getLogger()
    levels = {logger: logger.level for logger in (root, logging.getLogger("joulie"))}
    handlers = list(root.handlers)
    yield
    for logger, level in levels.items():
        logger.setLevel(level)
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
