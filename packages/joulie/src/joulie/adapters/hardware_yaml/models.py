"""Users' hardware catalogues: YAML in, models out, errors with file and line.

The format is shown by ``examples/hardware.yaml``. Clocks are in GHz there, as data sheets have them.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from joulie.domain.hardware import (
    BUILTIN_CATALOGUE,
    AmbiguousNameError,
    Catalogue,
    CpuModel,
    Evidence,
    GpuModel,
    HardwareModelError,
    Provenance,
)
from joulie.domain.hardware.models import CURVE_POINTS
from joulie.domain.units import InvalidQuantityError

_HZ_PER_GHZ = 1e9

Positive = Annotated[float, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]
Name = Annotated[str, Field(min_length=1)]


class HardwareFileError(ValueError):
    """A catalogue file that cannot be used; the message starts with ``file:line:``."""


class _Fact(BaseModel):
    """Evidence of one fact that differs from the entry's."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)

    provenance: Provenance = Field(strict=False)
    source: Name


class _Entry(BaseModel):
    """What every model states: its name, and where its numbers come from."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    key: Name
    vendor: Name
    aliases: list[Name] = Field(default_factory=list)
    stand_in_for: list[Name] = Field(default_factory=list)
    provenance: Provenance = Field(strict=False)
    source: Name
    facts: dict[Name, _Fact] = Field(default_factory=dict)

    def evidence(self, stated: list[str]) -> dict[str, Evidence]:
        """The entry's evidence for each stated fact, but where a fact has its own."""
        common = dict.fromkeys(stated, Evidence(self.provenance, self.source))
        return common | {name: Evidence(fact.provenance, fact.source) for name, fact in self.facts.items()}


class _PowerModel(BaseModel):
    """Power model of PEAKS (kubernetes-sigs/scheduler-plugins): ``k0 + k1 * exp(k2 * x)`` W at x % utilisation."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    k0: float
    k1: float
    k2: Annotated[float, Field(ge=-100.0, le=1.0)]

    def curve_w(self) -> tuple[float, ...]:
        """Power at even steps of utilisation, W, shape ``(CURVE_POINTS,)``."""
        steps_pct = (100.0 * step / (CURVE_POINTS - 1) for step in range(CURVE_POINTS))
        return tuple(self.k0 + self.k1 * math.exp(self.k2 * pct) for pct in steps_pct)


class _Cpu(_Entry):
    cores_per_socket: Annotated[int, Field(gt=0)]
    tdp_w: Positive
    cap_min_w: Positive
    cap_max_w: Positive
    base_ghz: Positive | None = None
    boost_ghz: Positive | None = None
    curve_w: list[Positive] | None = None
    power_model: _PowerModel | None = None
    curve_sockets: Annotated[int, Field(gt=0)] = 2
    threads_per_core: Annotated[int, Field(gt=0)] = 2

    @model_validator(mode="after")
    def _has_one_curve(self) -> Self:
        if (self.curve_w is None) == (self.power_model is None):
            raise ValueError("state either curve_w or power_model")
        return self

    def _stated(self) -> list[str]:
        clocks = {"base_hz": self.base_ghz, "boost_hz": self.boost_ghz}
        return [name for name in CpuModel.FACTS if clocks.get(name, 0.0) is not None]

    def model(self) -> CpuModel:
        return CpuModel(
            key=self.key,
            vendor=self.vendor,
            cores_per_socket=self.cores_per_socket,
            tdp_w=self.tdp_w,
            cap_min_w=self.cap_min_w,
            cap_max_w=self.cap_max_w,
            base_hz=None if self.base_ghz is None else self.base_ghz * _HZ_PER_GHZ,
            boost_hz=None if self.boost_ghz is None else self.boost_ghz * _HZ_PER_GHZ,
            curve_w=tuple(self.curve_w or ()) if self.power_model is None else self.power_model.curve_w(),
            curve_sockets=self.curve_sockets,
            threads_per_core=self.threads_per_core,
            aliases=tuple(self.aliases),
            stand_in_for=tuple(self.stand_in_for),
            evidence=self.evidence(self._stated()),
        )


class _Gpu(_Entry):
    cap_min_w: Positive
    cap_max_w: Positive
    default_w: Positive
    idle_w: NonNegative
    compute_gamma: Positive | None = None

    def model(self) -> GpuModel:
        return GpuModel(
            key=self.key,
            vendor=self.vendor,
            cap_min_w=self.cap_min_w,
            cap_max_w=self.cap_max_w,
            default_w=self.default_w,
            idle_w=self.idle_w,
            compute_gamma=self.compute_gamma,
            aliases=tuple(self.aliases),
            stand_in_for=tuple(self.stand_in_for),
            evidence=self.evidence([name for name in GpuModel.FACTS if getattr(self, name) is not None]),
        )


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    cpus: list[_Cpu] = Field(default_factory=list)
    gpus: list[_Gpu] = Field(default_factory=list)


def load_catalogue(path: Path, base: Catalogue = BUILTIN_CATALOGUE) -> Catalogue:
    """`base` extended by the models of a YAML file; a model with a known key replaces the known one.

    Raises:
        HardwareFileError: the file cannot be read, is not YAML, or states something that cannot be.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HardwareFileError(f"{path}: cannot be read: {error}") from error
    return parse_catalogue(text, str(path), base)


def parse_catalogue(text: str, name: str, base: Catalogue = BUILTIN_CATALOGUE) -> Catalogue:
    """Like `load_catalogue`, from the text of a file called `name`."""
    try:
        _refuse_references(text, name)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is None:
            raise HardwareFileError(f"{name}:1: is empty: expected 'cpus' or 'gpus'")
        _refuse_twins(root, name)
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = _mark_line(error.problem_mark or error.context_mark)
        raise HardwareFileError(f"{name}:{line}: {error.problem}") from error
    except RecursionError as error:
        raise HardwareFileError(f"{name}:1: is nested too deeply") from error
    except yaml.YAMLError as error:
        raise HardwareFileError(f"{name}:1: {error}") from error
    try:
        content = _File.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
        line = _line(root, first["loc"])
        raise HardwareFileError(f"{name}:{line}: {where}: {first['msg']}{more}") from error
    cpu_lines = [_line(root, ("cpus", at)) for at in range(len(content.cpus))]
    gpu_lines = [_line(root, ("gpus", at)) for at in range(len(content.gpus))]
    cpus = [_model(entry, name, line) for entry, line in zip(content.cpus, cpu_lines, strict=True)]
    gpus = [_model(entry, name, line) for entry, line in zip(content.gpus, gpu_lines, strict=True)]
    try:
        return base.extended(cpus, gpus)
    except AmbiguousNameError as error:
        lines = {model.key: line for model, line in zip(cpus + gpus, cpu_lines + gpu_lines, strict=True)}
        raise HardwareFileError(f"{name}:{lines.get(error.key, 1)}: {error}") from error


def _model(entry: _Cpu | _Gpu, name: str, line: int) -> Any:
    """The domain's model of an entry; its own checks go beyond the schema."""
    try:
        return entry.model()
    except (HardwareModelError, InvalidQuantityError) as error:
        raise HardwareFileError(f"{name}:{line}: {entry.key}: {error}") from error


def _line(node: yaml.Node, location: tuple[int | str, ...]) -> int:
    """Line of the deepest node on the way to `location`: what is missing has no line of its own."""
    for part in location:
        child = _child(node, part)
        if child is None:
            break
        node = child
    return _mark_line(node.start_mark)


def _mark_line(mark: Any) -> int:
    """Line of a mark, counted from 1; where the parser left none, the file's first."""
    return 1 if mark is None else int(mark.line) + 1


def _child(node: yaml.Node, part: int | str) -> yaml.Node | None:
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int):
        items: list[yaml.Node] = node.value
        return items[part] if part < len(items) else None
    if isinstance(node, yaml.MappingNode):
        return next((value for key, value in node.value if key.value == part), None)
    return None


def _refuse_references(text: str, name: str) -> None:
    """A table needs no references (``*name``), and a few lines of them expand to gigabytes."""
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            line = _mark_line(event.start_mark)
            raise HardwareFileError(f"{name}:{line}: references (*{event.anchor}) are not supported")


def _refuse_twins(node: yaml.Node, name: str) -> None:
    """YAML loaders let the last of two equal keys win in silence."""
    if isinstance(node, yaml.SequenceNode):
        for item in node.value:
            _refuse_twins(item, name)
    if isinstance(node, yaml.MappingNode):
        seen: set[Any] = set()
        for key, value in node.value:
            if key.value in seen:
                raise HardwareFileError(f"{name}:{_mark_line(key.start_mark)}: {key.value!r} is stated twice")
            seen.add(key.value)
            _refuse_twins(value, name)
