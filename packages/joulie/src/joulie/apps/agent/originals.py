"""The limits that devices had before Joulie wrote to them, saved on the host so that any later run can restore them."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Protocol


class LimitStore(Protocol):
    """Storage that survives the process but not a reboot, after which devices have their default limits again."""

    def load(self) -> dict[str, float]:
        """Saved limits by key; empty without any."""
        ...

    def save(self, limits: Mapping[str, float]) -> None:
        """Replace the saved limits atomically and durably.

        Raises:
            OSError: the limits cannot be written.
        """
        ...


class OriginalLimits:
    """Original limits by backend and device; power in W, frequency in Hz.

    A restored limit is forgotten: from then on the limit belongs to the machine's administrator again. CPUs and GPUs
    are capped in different threads.

    Args:
        store: persistent storage of the limits.
    """

    def __init__(self, store: LimitStore) -> None:
        self._store = store
        self._limits = dict(store.load())
        self._changing = threading.Lock()

    def for_backend(self, backend: str) -> dict[str, float]:
        """Original limits of a backend's devices, by device."""
        prefix = f"{backend}/"
        return {key.removeprefix(prefix): value for key, value in self._limits.items() if key.startswith(prefix)}

    def remember(self, backend: str, limits: Mapping[str, float]) -> None:
        """Save limits before the first write to their devices.

        Raises:
            OSError: the limits could not be saved; they must not be changed then.
        """
        added = {f"{backend}/{device}": value for device, value in limits.items()}
        with self._changing:
            if added:
                self._replace(added | self._limits)

    def forget(self, backend: str, device: str) -> None:
        """Delete the saved limit of a device, after it was restored.

        Raises:
            OSError: the file could not be written; the limit remains saved.
        """
        with self._changing:
            self._replace({key: value for key, value in self._limits.items() if key != f"{backend}/{device}"})

    def _replace(self, limits: dict[str, float]) -> None:
        self._store.save(limits)
        self._limits = limits
