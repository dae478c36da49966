"""Power profiles of hardware, as the hardware profiles file of the Compute Gardener Scheduler has them.

Models are compared whole, as raw model strings, label values and marketing names spell them, never by substring.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Generic, TypeVar

from joulie.domain.hardware import normalised

MAX_PUE = 10.0
_MAX_LABEL_LENGTH = 63
_TRADEMARKS = re.compile(r"\((?:r|tm|c)\)|[®™]", re.IGNORECASE)
_NOT_IN_LABELS = re.compile(r"[^A-Za-z0-9._]+")

ProfileT = TypeVar("ProfileT")


class Scaling(StrEnum):
    """How the power of a CPU follows its frequency (``powerScaling``)."""

    LINEAR = "linear"
    QUADRATIC = "quadratic"
    CUBIC = "cubic"

    @property
    def exponent(self) -> float:
        """Of the frequency's ratio."""
        return {Scaling.LINEAR: 1.0, Scaling.QUADRATIC: 2.0, Scaling.CUBIC: 3.0}[self]


@dataclass(frozen=True, slots=True)
class CpuProfile:
    """Power of one CPU package.

    Attributes:
        idle_w: idle, W.
        max_w: at full utilisation, W.
        cores: physical cores; None where the file does not say. Then a node has one package.
        base_hz: frequency that the powers are of, Hz; None where the file does not say.
        scaling: how power above idle follows the frequency below that.
    """

    idle_w: float
    max_w: float
    cores: int | None = None
    base_hz: float | None = None
    scaling: Scaling = Scaling.LINEAR


@dataclass(frozen=True, slots=True)
class GpuProfile:
    """Power of one GPU.

    Attributes:
        idle_w: idle, W.
        max_w: at full utilisation, W.
        workloads: share of `max_w` that a type of workload draws at full utilisation; 1 of others.
    """

    idle_w: float
    max_w: float
    workloads: Mapping[str, float] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True)
class MemProfile:
    """Power of memory.

    Attributes:
        idle_w_per_gb: of a GB that is there, W.
        max_w_per_gb: of a GB that is used, W.
        base_idle_w: of the controller, W.
    """

    idle_w_per_gb: float
    max_w_per_gb: float
    base_idle_w: float = 0.0


@dataclass(frozen=True, slots=True)
class CloudInstance:
    """What an instance type of a cloud consists of; None and empty where the file does not say.

    Attributes:
        cpu_model: name of a CPU profile.
        gpu_model: name of a GPU profile.
        memory_type: name of a memory profile.
        cpus: logical CPUs.
        gpus: GPUs.
        memory_gb: GB.
    """

    cpu_model: str
    gpu_model: str = ""
    memory_type: str = ""
    cpus: int | None = None
    gpus: int | None = None
    memory_gb: float | None = None


def pue_in(text: str) -> float:
    """The PUE that an annotation says.

    Raises:
        ValueError: it is none; the message says what is expected.
    """
    expected = f"a number between 1 and {MAX_PUE:g}"
    try:
        value = float(text)
    except ValueError:
        raise ValueError(expected) from None
    if not 1.0 <= value <= MAX_PUE:
        raise ValueError(expected)
    return value


def stated_pue(annotations: Mapping[str, str], key: str) -> float | None:
    """The PUE that a node's annotation says; None without one, and if it is invalid."""
    with suppress(KeyError, ValueError):
        return pue_in(annotations[key])
    return None


def label_form(model: str) -> str:
    """A model as a label value: raw model strings, with brackets and blanks, are none.

    A raw string and its label have the same form, so either can be looked up by it.

    >>> label_form("Intel(R) Xeon(R) Platinum 8275CL CPU @ 3.00GHz")
    'Intel-Xeon-Platinum-8275CL-CPU-3.00GHz'
    """
    text = _NOT_IN_LABELS.sub("-", _TRADEMARKS.sub(" ", model).strip())
    return text[:_MAX_LABEL_LENGTH].strip("-._")


class Profiles(Generic[ProfileT]):
    """Profiles by the names of models.

    Args:
        by_name: as the file spells them.
        longer_names: whether a profile also holds for names with more words: ``NVIDIA A100`` for the
            ``NVIDIA-A100-SXM4-80GB`` of the GPU operator. The longest such profile counts.
    """

    def __init__(self, by_name: Mapping[str, ProfileT] | None = None, *, longer_names: bool = False) -> None:
        self.by_name: Mapping[str, ProfileT] = MappingProxyType(dict(by_name or {}))
        self._longer_names = longer_names
        self._by_label = {label_form(name).lower(): profile for name, profile in self.by_name.items()}
        # What has no number left is no model: "Intel(R) Xeon(R) CPU @ 2.20GHz" is just a Xeon then.
        by_words = {normalised(name): profile for name, profile in self.by_name.items()}
        self._by_words = {words: profile for words, profile in by_words.items() if re.search(r"\d", words)}

    def find(self, model: str) -> ProfileT | None:
        """The profile of a model by its raw name, its label or another usual spelling; None where there is none."""
        found = self._by_label.get(label_form(model).lower())
        if found is not None:
            return found
        words = normalised(model)
        while words:
            found = self._by_words.get(words)
            if found is not None or not self._longer_names:
                return found
            words = words.rpartition(" ")[0]
        return None


@dataclass(frozen=True, eq=False)
class HardwareProfiles:
    """The content of a hardware profiles file.

    Attributes:
        cpus: by model.
        gpus: by model.
        memories: by type.
        instances: of clouds, by provider (aws, gcp, azure), then type.
        pue: power usage effectiveness where no one says otherwise.
        gpu_pue: the same for GPUs.
        problems: what of the file was left out and why, with file and line.
    """

    cpus: Profiles[CpuProfile] = field(default_factory=Profiles)
    gpus: Profiles[GpuProfile] = field(default_factory=lambda: Profiles(longer_names=True))
    memories: Profiles[MemProfile] = field(default_factory=Profiles)
    instances: Mapping[str, Mapping[str, CloudInstance]] = field(default_factory=dict)
    pue: float = 1.1
    gpu_pue: float = 1.15
    problems: tuple[str, ...] = ()
