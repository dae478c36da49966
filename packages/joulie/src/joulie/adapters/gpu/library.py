"""What the worker process needs of a vendor's library. Imports next to nothing, since it runs on every GPU node."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Protocol

GpuState = dict[str, Any]
"""A GPU: uuid, model, limit_w, min_w, max_w, default_w, power_w, energy_j, mig; or why it is lost."""


class LibraryError(Exception):
    """A library that cannot be used, or a call that failed.

    Args:
        message: what failed.
        kind: ``failed``, ``refused`` (trying again is useless), ``absent`` (this machine has no such library) or
            ``outdated`` (the loaded driver is of another version than the library).
    """

    def __init__(self, message: str, kind: str = "failed") -> None:
        super().__init__(message)
        self.kind = kind


class GpuLibrary(Protocol):
    """A vendor's library. Every method raises `LibraryError`; disconnected, only `connect` can be called."""

    @property
    def connected(self) -> bool:
        """Whether the library is loaded and initialised."""
        ...

    def connect(self) -> None:
        """Load and initialise the library."""
        ...

    def disconnect(self) -> None:
        """Shut the library down and unload it; nothing to do if it is not connected."""
        ...

    def read(self) -> Sequence[GpuState]:
        """All GPUs, in a stable order."""
        ...

    def survives_disconnect(self) -> bool:
        """Whether limits stay when nobody is connected."""
        ...

    def set_limit(self, uuid: str, limit_w: float) -> tuple[float, float]:
        """Write a limit; the limit that is set then, and the one that is enforced, W."""
        ...

    def clocks(self) -> Sequence[GpuState]:
        """SM clocks of the GPUs that state them: uuid, sm_mhz, largest_mhz, idle, at_power_limit, slowed."""
        ...

    def lock_clock(self, uuid: str, max_mhz: float) -> float:
        """Lock the SM clock from above; the supported clock that it is locked to, MHz."""
        ...

    def reset_clock(self, uuid: str) -> None:
        """Take the lock of the SM clock away."""
        ...


def load_library(name: str, why_missing: str) -> ctypes.CDLL:
    """A shared library; raises `LibraryError` if there is none."""
    try:
        return ctypes.CDLL(name)
    except OSError:
        raise LibraryError(f"{name} not found: {why_missing}", "absent") from None


def close_library(library: ctypes.CDLL) -> None:
    """Unload a shared library, so that the next load finds that of a new driver."""
    import _ctypes

    _ctypes.dlclose(library._handle)
