"""Power limits of AMD GPUs through the command rocm-smi, where neither the driver's files nor AMD SMI can be used.

Source: rocm_smi_lib, python_smi_tools/rocm_smi.py. The command exits with 0 even if it rejects a request, so only its
output and the cap read back are reliable. It does not report the cap range, and sets whole watts. Each call starts a
Python program and takes some tenths of a second: one call lists all GPUs, and what it listed is used for a moment.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from typing import Any

from joulie.domain.quantities import positive_number
from joulie.ports import ControlFailedError, ControlRefusedError, DeviceKind, NoBackendError, PowerDevice

_TIMEOUT_S = 15.0
_CAP = "Max Graphics Package Power (W)"
_MODELS = ("Card Series", "Card series", "Card Model", "Card model")  # newer and older releases
_REFUSALS = ("permission", "not supported", "must be run as root")
READ_BACK_TOLERANCE_W = 1.0

FRESH_S = 1.0
"""Time for which a listing is used again, s."""

_Cards = list[tuple[str, dict[str, Any]]]


class RocmSmi:
    """Power limits of AMD GPUs; a `PowerLimiter`. A GPU's id is its unique id, else ``cardN``.

    Args:
        command: name or path of rocm-smi.
        clock: monotonic time, s.
    """

    name = "rocm-smi"

    def __init__(self, command: str = "rocm-smi", clock: Callable[[], float] = time.monotonic) -> None:
        self._command = command
        self._clock = clock
        self._listed: _Cards = []
        self._listed_at_s = float("-inf")

    def unavailable(self) -> str | None:
        """None if at least one GPU reports its power cap."""
        try:
            devices = self.devices()
        except ControlFailedError as error:
            return str(error)
        if not devices:
            return f"{self._command} lists no GPU"
        return None if any(device.limit_w for device in devices) else f"{self._command} reports no GPU power cap"

    def devices(self) -> Sequence[PowerDevice]:
        """See `PowerLimiter.devices`."""
        return [_device(card, facts) for card, facts in self._cards()]

    def set_limit(self, device_id: str, limit_w: float) -> float:
        """See `PowerLimiter.set_limit`; whole watts."""
        limit_w = positive_number("limit_w", limit_w)
        card = next((card for card, facts in self._cards() if _id(card, facts) == device_id), None)
        if card is None:
            raise ControlFailedError(f"{self._command} lists no GPU {device_id}")
        number, watts = card.removeprefix("card"), str(round(limit_w))
        self._listed_at_s = float("-inf")
        output = self._run("-d", number, "--setpoweroverdrive", watts, "--autorespond", "y")
        in_force_w = _number(dict(self._cards()).get(card, {}).get(_CAP))
        if in_force_w is None or abs(in_force_w - limit_w) > READ_BACK_TOLERANCE_W:
            kind = ControlRefusedError if any(word in output.lower() for word in _REFUSALS) else ControlFailedError
            raise kind(f"set {watts} W on GPU {device_id}: {in_force_w or 'unknown'} W in force: {_one_line(output)}")
        return in_force_w

    def _cards(self) -> _Cards:
        """Fields of each card, by card number, as listed a moment ago or now."""
        if self._clock() - self._listed_at_s >= FRESH_S:
            self._listed = self._list()
            self._listed_at_s = self._clock()
        return self._listed

    def _list(self) -> _Cards:
        if shutil.which(self._command) is None:
            raise NoBackendError(f"{self._command} is not installed")
        output = self._run("--showmaxpower", "--showproductname", "--showuniqueid", "--json")
        start = output.find("{")  # warnings may precede the JSON
        try:
            content, _ = json.JSONDecoder().raw_decode(output, max(start, 0))
        except ValueError as error:
            raise ControlFailedError(f"{self._command} printed no JSON: {_one_line(output)}") from error
        cards = [(key, facts) for key, facts in content.items() if key.removeprefix("card").isdecimal()]
        return sorted(cards, key=lambda card: int(card[0].removeprefix("card")))

    def _run(self, *arguments: str) -> str:
        try:
            done = subprocess.run(  # noqa: S603
                [self._command, *arguments], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise ControlFailedError(f"{self._command}: {error}") from error
        return done.stdout + done.stderr


def _device(card: str, facts: dict[str, Any]) -> PowerDevice:
    model = next((str(facts[key]) for key in _MODELS if facts.get(key) not in (None, "N/A")), None)
    return PowerDevice(_id(card, facts), DeviceKind.GPU, model, limit_w=_number(facts.get(_CAP)))


def _id(card: str, facts: dict[str, Any]) -> str:
    unique = facts.get("Unique ID")
    return str(unique) if unique not in (None, "N/A") else card


def _number(value: object) -> float | None:
    """Power as printed, W; None for ``N/A`` and 0, which is not a cap."""
    try:
        number = float(str(value))
    except ValueError:
        return None
    return number if 0 < number < float("inf") else None


def _one_line(output: str) -> str:
    """Output of the command without its horizontal rules, in one line."""
    lines = (line.strip("= \t") for line in output.splitlines())
    return "; ".join(line for line in lines if line)[:300] or "no output"
