"""Upper CPU frequency limits by the cpufreq policies of sysfs.

Source: Linux, Documentation/admin-guide/pm/{cpufreq,intel_pstate,amd-pstate}.rst. Frequencies are in kHz there.
`scaling_max_freq` takes a value; what it reads back is the lowest of all limits in force (thermal and firmware ones
too), and drivers with a table of frequencies round down to one of them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from joulie.domain.quantities import positive_number
from joulie.ports import ControlFailedError, FrequencyPolicy, control_error

_HZ_PER_KHZ = 1e3
_FAMILIES = {
    "intel_pstate": "intel_pstate",
    "intel_cpufreq": "intel_pstate",  # its passive mode
    "amd-pstate": "amd-pstate",
    "amd-pstate-epp": "amd-pstate",  # its active mode
}
READ_BACK_TOLERANCE = 0.01
"""Share of the frequency asked for by which drivers without a table may round."""


class Cpufreq:
    """Frequency limits of the policies that have a CPU online; a `FrequencyLimiter`.

    Args:
        host_sys: where the host's /sys is mounted.
    """

    def __init__(self, host_sys: Path = Path("/sys")) -> None:
        self._folder = host_sys / "devices/system/cpu/cpufreq"

    @property
    def driver(self) -> str:
        """Family of the scaling driver: ``intel_pstate``, ``amd-pstate``, else the driver's name; empty without one."""
        for path in self._policy_folders():
            if name := _text(path / "scaling_driver"):
                return _FAMILIES.get(name, name)
        return ""

    def unavailable(self) -> str | None:
        """See `FrequencyLimiter.unavailable`."""
        policies = self.policies()
        if not policies:
            return f"no cpufreq policy in {self._folder}: no scaling driver, or a virtual machine"
        file = self._folder / policies[0].id / "scaling_max_freq"
        return None if os.access(file, os.W_OK) else f"{file} may not be written: needs root and a writable mount"

    def policies(self) -> Sequence[FrequencyPolicy]:
        """See `FrequencyLimiter.policies`; a policy whose CPUs are all offline does not answer and is left out."""
        return [policy for path in self._policy_folders() if (policy := _policy(path))]

    def set_limit(self, policy_id: str, limit_hz: float) -> float:
        """See `FrequencyLimiter.set_limit`; the driver may round down to the next frequency that it has."""
        limit_hz = positive_number("limit_hz", limit_hz)
        path = self._folder / policy_id
        file = path / "scaling_max_freq"
        action = f"write {limit_hz / 1e6:g} MHz to {file}"
        try:
            _write(file, str(round(limit_hz / _HZ_PER_KHZ)))
            in_force_hz = _hertz(file)
        except OSError as error:
            raise control_error(action, error) from error
        except ValueError as error:
            raise ControlFailedError(f"{action}: {error}") from error
        if not _lowest_expected(path, limit_hz) <= in_force_hz <= limit_hz * (1 + READ_BACK_TOLERANCE):
            raise ControlFailedError(f"{action}: accepted, but {in_force_hz / 1e6:g} MHz is in force")
        return in_force_hz

    def _policy_folders(self) -> list[Path]:
        folders = [path for path in self._folder.glob("policy*") if re.fullmatch(r"policy\d+", path.name)]
        return sorted(folders, key=lambda path: int(path.name.removeprefix("policy")))


def _policy(path: Path) -> FrequencyPolicy | None:
    try:
        return FrequencyPolicy(
            path.name,
            min_hz=_hertz(path / "cpuinfo_min_freq"),
            max_hz=_hertz(path / "cpuinfo_max_freq"),
            limit_hz=_hertz(path / "scaling_max_freq"),
            current_hz=_hertz_or_none(path / "scaling_cur_freq"),
        )
    except (OSError, ValueError):
        return None


def _lowest_expected(path: Path, limit_hz: float) -> float:
    """The smallest value that may be read back after `limit_hz` was written."""
    tables = [_text(path / f"scaling_{table}_frequencies") or "" for table in ("available", "boost")]
    steps_hz = [int(step) * _HZ_PER_KHZ for step in " ".join(tables).split() if step.isdecimal()]
    return max((step for step in steps_hz if step <= limit_hz), default=limit_hz) * (1 - READ_BACK_TOLERANCE)


def _write(file: Path, text: str) -> None:
    """Write in one call, as sysfs wants it; unlike `Path.write_text` this creates no file."""
    descriptor = os.open(file, os.O_WRONLY | os.O_TRUNC)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _text(file: Path) -> str | None:
    try:
        return file.read_text().strip()
    except (OSError, ValueError):
        return None


def _hertz(file: Path) -> float:
    text = file.read_text().strip()
    if not text.isdecimal():
        raise ValueError(f"{file} holds {text[:40]!r}, not a number")
    return int(text) * _HZ_PER_KHZ


def _hertz_or_none(file: Path) -> float | None:
    try:
        return _hertz(file)
    except (OSError, ValueError):
        return None
