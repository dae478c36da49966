"""Power limits of AMD GPUs through the command rocm-smi, where neither the driver's files nor AMD SMI can be used.

Source: rocm_smi_lib, python_smi_tools/rocm_smi.py. The command exits with 0 even if it rejects a request, so only its
output and the cap read back are reliable. It does not report the cap range, and sets whole watts. Each call starts a
Python program and takes some tenths of a second: one call lists all GPUs, and what it listed is used for a moment.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from joulie.domain.quantities import positive_number
from joulie.ports.devices import ControlFailedError, ControlRefusedError, DeviceKind, NoBackendError, PowerDevice

_TIMEOUT_S = 15.0
_CAP = "Max Graphics Package Power (W)"
_MODELS = ("Card Series", "Card series", "Card Model", "Card model")  # newer and older releases
_CARD = re.compile(r"GPU\[(\d+)\]")
_REFUSALS = ("permission", "not supported", "must be run as root")
READ_BACK_TOLERANCE_W = 1.0

FRESH_S = 1.0
"""Time for which a listing is used again, s."""

_Cards = list[tuple[str, dict[str, Any]]]


class RocmSmi:
    """Power limits of AMD GPUs; a `JointPowerLimiter`. A GPU's id is its unique id, else ``cardN``.

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
        result = self.set_limits({device_id: positive_number("limit_w", limit_w)})[device_id]
        if isinstance(result, float):
            return result
        raise result

    def set_limits(
        self, limits_w: Mapping[str, float]
    ) -> Mapping[str, float | ControlRefusedError | ControlFailedError]:
        """See `JointPowerLimiter.set_limits`: one call for each limit, then one that reads all of them."""
        try:
            cards = {_id(card, facts): card for card, facts in self._cards()}
            self._listed_at_s = float("-inf")
            output = self._write({cards[gpu]: limit_w for gpu, limit_w in limits_w.items() if gpu in cards})
            in_force_w = {_id(card, facts): _number(facts.get(_CAP)) for card, facts in self._cards()}
        except ControlFailedError as error:
            return dict.fromkeys(limits_w, error)
        results: dict[str, float | ControlRefusedError | ControlFailedError] = {}
        for gpu, limit_w in limits_w.items():
            if gpu not in cards:
                results[gpu] = ControlFailedError(f"{self._command} lists no GPU {gpu}")
            else:
                results[gpu] = _result(gpu, limit_w, in_force_w.get(gpu), output[cards[gpu]])
        return results

    def _write(self, limits_w: Mapping[str, float]) -> Mapping[str, str]:
        """Write the limits of cards; what was printed about each card."""
        cards_by_watts: dict[int, list[str]] = {}
        for card, limit_w in limits_w.items():
            cards_by_watts.setdefault(round(limit_w), []).append(card)
        output: dict[str, str] = {}
        for watts, cards in cards_by_watts.items():
            numbers = [card.removeprefix("card") for card in cards]
            text = self._run("-d", *numbers, "--setpoweroverdrive", str(watts), "--autorespond", "y")
            output |= {card: _about(card, text) for card in cards}
        return output

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


def _result(
    gpu: str, limit_w: float, in_force_w: float | None, output: str
) -> float | ControlRefusedError | ControlFailedError:
    """The limit in force, W, or what failed."""
    if in_force_w is not None and abs(in_force_w - limit_w) <= READ_BACK_TOLERANCE_W:
        return in_force_w
    kind = ControlRefusedError if any(word in output.lower() for word in _REFUSALS) else ControlFailedError
    in_force = f"{in_force_w:g}" if in_force_w is not None else "unknown"
    return kind(f"set {round(limit_w)} W on GPU {gpu}: {in_force} W in force: {_one_line(output)}")


def _about(card: str, output: str) -> str:
    """The lines about a card, and those about none."""
    number = card.removeprefix("card")
    lines = output.splitlines()
    return "\n".join(line for line in lines if (found := _CARD.search(line)) is None or found[1] == number)


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
