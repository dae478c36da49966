"""Python's garbage collector in programs that keep a whole cluster in memory."""

from __future__ import annotations

import gc


def spare_what_lives_long() -> None:
    """Collect once, and never again traverse what is alive now: hundreds of thousands of objects that stay for days.

    They are still freed when the last reference to them goes; only cycles among them would stay.
    """
    gc.collect()
    gc.freeze()
