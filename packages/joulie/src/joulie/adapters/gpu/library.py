"""Base classes of the backends that control GPUs through a vendor's management library (NVML, AMD SMI)."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from joulie.domain.quantities import positive_number
from joulie.ports import ControlFailedError, PowerDevice

log = logging.getLogger(__name__)

READ_BACK_TOLERANCE_W = 1.0
"""Drivers may round to whole watts, W; a larger difference means that another limit is in force."""


class GpuSession(ABC):
    """Connection of the process to a GPU driver, opened on first use and reopened after it failed.

    Attributes:
        title: name of the library in messages.
    """

    title: str

    def __init__(self) -> None:
        self._library: Any = None
        self._lost: set[int] = set()

    def library(self) -> Any:
        """The library's module, connected.

        Raises:
            ControlFailedError: the library is not installed, or the driver is missing or does not respond.
        """
        if self._library is None:
            self._library = self._connect()
        return self._library

    def gpus(self) -> Iterator[tuple[str, Any]]:
        """UUID and handle of every GPU that responds, by index; a GPU that stops responding is logged once.

        Raises:
            ControlFailedError: the driver does not respond.
        """
        library = self.library()
        try:
            references = self._references(library)
        except self._error_type(library) as error:
            self.close()  # a driver that was reloaded responds only to a new connection
            raise ControlFailedError(f"{self.title}: {error}") from error
        for index, reference in enumerate(references):
            try:
                uuid, handle = self._open(library, reference)
            except self._error_type(library) as error:
                if index not in self._lost:
                    log.warning("GPU does not respond, ignored", extra={"gpu": index, "error": str(error)})
                self._lost.add(index)
                continue
            self._lost.discard(index)
            yield uuid, handle

    def gpu(self, uuid: str) -> Any:
        """Handle of a GPU.

        Raises:
            ControlFailedError: the GPU or the driver does not respond.
        """
        for found, handle in self.gpus():
            if found == uuid:
                return handle
        raise ControlFailedError(f"GPU {uuid} does not respond")

    def read(self, function: str, handle: Any) -> Any:
        """Result of a library function for one GPU; None if the call fails."""
        library = self.library()
        try:
            return getattr(library, function)(handle)
        except self._error_type(library):
            return None

    def close(self) -> None:
        """Disconnect; the next use connects again."""
        library, self._library = self._library, None
        if library is not None:
            try:
                self._shut_down(library)
            except self._error_type(library) as error:
                log.debug("GPU library did not shut down", extra={"library": self.title, "error": str(error)})

    @abstractmethod
    def _connect(self) -> Any:
        """Import and initialise the library; raises `ControlFailedError`."""

    @abstractmethod
    def _shut_down(self, library: Any) -> None: ...

    @abstractmethod
    def _error_type(self, library: Any) -> type[Exception]:
        """Exception that the library's functions raise."""

    @abstractmethod
    def _references(self, library: Any) -> Sequence[Any]:
        """Indices or handles of all GPUs."""

    @abstractmethod
    def _open(self, library: Any, reference: Any) -> tuple[str, Any]:
        """UUID and handle of a GPU."""


class GpuLimiter(ABC):
    """Power limits of GPUs through a session; the common part of a `PowerLimiter`. A GPU's id is its UUID.

    Attributes:
        vendor: vendor of the GPUs in messages.
    """

    vendor: str

    def __init__(self, session: GpuSession) -> None:
        self._session = session

    def unavailable(self) -> str | None:
        """None if the power of at least one GPU can be limited."""
        try:
            devices = self.devices()
        except ControlFailedError as error:
            return str(error)
        if not devices:
            return f"no {self.vendor} GPU responds"
        if not any(self._supports_limit(device) for device in devices):
            return f"power limits are not supported by {', '.join(device.model or device.id for device in devices)}"
        return None

    def devices(self) -> Sequence[PowerDevice]:
        """See `PowerLimiter.devices`."""
        return [self._device(uuid, handle) for uuid, handle in self._session.gpus()]

    def set_limit(self, device_id: str, limit_w: float) -> float:
        """See `PowerLimiter.set_limit`."""
        limit_w = positive_number("limit_w", limit_w)
        handle = self._session.gpu(device_id)
        return self._set_limit(handle, limit_w, f"set {limit_w:g} W on GPU {device_id}")

    def _supports_limit(self, device: PowerDevice) -> bool:
        return device.limit_w is not None

    @abstractmethod
    def _device(self, uuid: str, handle: Any) -> PowerDevice:
        """A GPU with its limits."""

    @abstractmethod
    def _set_limit(self, handle: Any, limit_w: float, action: str) -> float:
        """Write a limit and return the one in force, W; `action` describes the write for error messages."""
