"""What holds for all tests."""

import logging
from collections.abc import Iterator

import pytest
from hypothesis import settings

# Machines are shared and slow at times: how long an example takes says nothing about the code.
settings.register_profile("joulie", deadline=None)
settings.load_profile("joulie")


@pytest.fixture(autouse=True)
def _logging_as_found() -> Iterator[None]:
    """A test that runs a program in this process leaves its logging to nobody else."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    for handler in [handler for handler in root.handlers if handler not in handlers]:
        root.removeHandler(handler)
