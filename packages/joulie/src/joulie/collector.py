"""Python's garbage collector where very many objects are made or kept."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collection() -> Iterator[None]:
    """Look for no reference cycles meanwhile, where many objects are made and no cycles of them.

    While modules are imported, which stay, that is an eighth of a program's start; in a native run, a tenth of it.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def spare_what_lives_long() -> None:
    """Collect once, and never again traverse what is alive now: hundreds of thousands of objects that stay for days.

    They are still freed when the last reference to them goes; only cycles among them would stay.
    """
    gc.collect()
    gc.freeze()
