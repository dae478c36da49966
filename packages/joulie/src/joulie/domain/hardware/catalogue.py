"""Recognition of hardware by the strings that Linux, NVML, ROCm and node labels print.

Names are compared whole, after normalisation, never by substring: an L40 is not an L40S and an H100 PCIe is not an
H100 NVL, though each string contains the other's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from types import MappingProxyType
from typing import Generic, TypeVar

from joulie.domain.hardware.models import CpuModel, GpuModel

ModelT = TypeVar("ModelT", CpuModel, GpuModel)


class Quality(StrEnum):
    """How well a device is known (NodeHardware's `quality`)."""

    EXACT = "exact"
    """In the catalogue."""
    HEURISTIC = "heuristic"
    """A related part stands in for it, or it is not in the catalogue: its numbers are its own, or estimated."""
    UNAVAILABLE = "unavailable"
    """Neither recognised nor able to say anything of itself."""


class AmbiguousNameError(ValueError):
    """Two models of a catalogue claim the same name.

    Attributes:
        key: the later of the two models.
    """

    def __init__(self, name: str, first: str, key: str) -> None:
        super().__init__(f"{name!r} names both {first!r} and {key!r}: remove it from one of them")
        self.key = key


@dataclass(frozen=True)
class Match(Generic[ModelT]):
    """Result of looking up a raw model string.

    Attributes:
        raw: the string that was looked up.
        model: the model, None where the quality is unavailable.
        quality: how well it is known.
    """

    raw: str
    model: ModelT | None
    quality: Quality


_TRADEMARKS = re.compile(r"\((?:r|tm|c)\)|[®™]", re.IGNORECASE)
# A label cannot hold the @ before the clock.
_CLOCK = re.compile(r"[@\s_-]\s*\d+(?:\.\d+)?\s*[gm]hz", re.IGNORECASE)
_CORES = re.compile(r"\b\d+-core\b", re.IGNORECASE)
# Suffixes of the GPU operator's node labels: the device is the same, only shared or sliced.
_SHARING = re.compile(r"[-_](?:shared|mig-[\w.]+)$", re.IGNORECASE)
_SEPARATORS = re.compile(r"[\s_/-]+")
_NOISE = frozenset({"nvidia", "tesla", "amd", "intel", "corporation", "cpu", "processor", "gpu", "accelerator"})


def normalised(raw: str) -> str:
    """The part of a model string that identifies the part: lower case, single spaces, without vendor and decoration.

    >>> normalised("AMD EPYC 9654 96-Core Processor")
    'epyc 9654'
    >>> normalised("NVIDIA-H100-NVL") == normalised("NVIDIA H100 NVL")
    True
    """
    text = raw.strip()
    for pattern in (_TRADEMARKS, _CLOCK, _CORES):
        text = pattern.sub(" ", text)
    text = _SHARING.sub("", text.strip())
    return " ".join(word for word in _SEPARATORS.split(text.lower()) if word and word not in _NOISE)


@dataclass(frozen=True, eq=False)
class Catalogue:
    """CPU and GPU models by name. It never changes: `extended` returns a new one.

    Equal and hashed by identity, since its hundreds of models would make a slow key.

    A name is looked up among keys first, then aliases (both exact), then among the parts that a model stands in for.

    Raises:
        AmbiguousNameError: two models claim the same name in the same role.
    """

    cpus: tuple[CpuModel, ...] = field(default=(), repr=False)
    gpus: tuple[GpuModel, ...] = field(default=(), repr=False)
    _cpu_names: Mapping[str, Match[CpuModel]] = field(init=False, repr=False)
    _gpu_names: Mapping[str, Match[GpuModel]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_cpu_names", _index(self.cpus))
        object.__setattr__(self, "_gpu_names", _index(self.gpus))

    def cpu(self, raw: str) -> Match[CpuModel]:
        """Recognise a CPU from its model string (``/proc/cpuinfo``, labels)."""
        return _look_up(self._cpu_names, raw)

    def gpu(self, raw: str) -> Match[GpuModel]:
        """Recognise a GPU from its model string (NVML, AMD SMI, ROCm, labels)."""
        return _look_up(self._gpu_names, raw)

    def extended(self, cpus: Iterable[CpuModel] = (), gpus: Iterable[GpuModel] = ()) -> Catalogue:
        """This catalogue with more models; one with the key of an existing model replaces it."""
        return replace(self, cpus=_merged(self.cpus, cpus), gpus=_merged(self.gpus, gpus))


def _merged(old: tuple[ModelT, ...], new: Iterable[ModelT]) -> tuple[ModelT, ...]:
    added = tuple(new)
    replaced = {normalised(model.key) for model in added}
    return tuple(model for model in old if normalised(model.key) not in replaced) + added


def _index(models: tuple[ModelT, ...]) -> Mapping[str, Match[ModelT]]:
    """All names of all models. Roles are filled in order of precedence, and an earlier role is never overwritten."""
    index: dict[str, Match[ModelT]] = {}
    for role in ("key", "aliases", "stand_in_for"):
        claimed: dict[str, ModelT] = {}
        for model in models:
            names = (model.key,) if role == "key" else getattr(model, role)
            for name in names:
                _claim(claimed, name, model)
        for normal, model in claimed.items():
            is_exact = role != "stand_in_for" and not model.is_stand_in
            index.setdefault(normal, Match(model.key, model, Quality.EXACT if is_exact else Quality.HEURISTIC))
    return MappingProxyType(index)


def _claim(claimed: dict[str, ModelT], name: str, model: ModelT) -> None:
    other = claimed.setdefault(normalised(name), model)
    if other is not model:
        raise AmbiguousNameError(name, other.key, model.key)


def _look_up(index: Mapping[str, Match[ModelT]], raw: str) -> Match[ModelT]:
    found = index.get(normalised(raw))
    return Match(raw, None, Quality.UNAVAILABLE) if found is None else replace(found, raw=raw)
