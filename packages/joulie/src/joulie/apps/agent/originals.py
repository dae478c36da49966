"""The limits that devices had before Joulie, kept on the host so that any later start can restore them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol


class LimitStore(Protocol):
    """A file that survives the process but not a reboot, after which devices have their own limits again."""

    def load(self) -> dict[str, float]:
        """What was saved; empty where nothing was."""
        ...

    def save(self, limits: Mapping[str, float]) -> None:
        """Replace what was saved, atomically and durably.

        Raises:
            OSError: it cannot be written.
        """
        ...


class Originals:
    """Original limits by backend and device. Powers are in W, frequencies in Hz.

    What is restored is forgotten: from then on the limits of the device are its administrator's again.

    Args:
        store: where they are kept.
    """

    def __init__(self, store: LimitStore) -> None:
        self._store = store
        self._limits = dict(store.load())

    def of(self, backend: str) -> dict[str, float]:
        """Original limit by device."""
        prefix = f"{backend}/"
        return {key.removeprefix(prefix): value for key, value in self._limits.items() if key.startswith(prefix)}

    def remember(self, backend: str, limits: Mapping[str, float]) -> None:
        """Save limits before the first write to their devices.

        Raises:
            OSError: they could not be saved, and so must not be changed.
        """
        added = {f"{backend}/{device}": value for device, value in limits.items()}
        if added:
            self._replace(added | self._limits)

    def forget(self, backend: str, device: str) -> None:
        """Drop a limit that is in force again.

        Raises:
            OSError: the file could not be written; the limit stays saved.
        """
        self._replace({key: value for key, value in self._limits.items() if key != f"{backend}/{device}"})

    def _replace(self, limits: dict[str, float]) -> None:
        self._store.save(limits)
        self._limits = limits
