"""What a scenario may say: cluster, workload, schedulers, climate, cooling plant, duration, seeds.

The models are the schema: everything is checked strictly (a number is not text, NaN is no number), unknown keys are
refused. `joulie_lab.simulation.scenario_files` reads them from YAML.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
    with_config,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from joulie.domain.units import SECONDS_PER_HOUR
from joulie_lab.simulation.climate import Climate
from joulie_lab.simulation.cluster import Cluster, NodePool
from joulie_lab.simulation.dx_plant import DxParameters
from joulie_lab.simulation.engine import SCHEDULERS, QueueSettings, UnknownSchedulerError
from joulie_lab.simulation.jobs import ColumnRef, JobTableSpec

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
# The simulation's own dataclasses are part of the schema, so what holds for the models holds for them.
for _part in (Cluster, NodePool, Climate, DxParameters, QueueSettings):
    with_config(_STRICT)(_part)

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Kept = Literal["small-cpu", "medium-cpu", "gpu-training", "gpu-inference", "large-cpu", "cpu-above-8-cores"]
_QUEUE_WINDOW_START_H = 2.0


class ContradictionError(ValueError):
    """A value that contradicts another one.

    Attributes:
        quantity: the key at fault, within the model that found it.
    """

    def __init__(self, quantity: str, problem: str) -> None:
        super().__init__(problem)
        self.quantity = quantity


def _known_scheduler(name: str) -> str:
    if name not in SCHEDULERS:
        raise UnknownSchedulerError(name, SCHEDULERS)
    return name


class _Model(BaseModel):
    model_config = _STRICT


class _Shorthand(_Model):
    """A model that a single string may stand for."""

    @classmethod
    def _spell_out(cls, text: str) -> Mapping[str, Any]:
        """The keys and values that `text` stands for."""
        raise AssertionError("each shorthand says what its string means")

    @classmethod
    def _short_schema(cls) -> JsonSchemaValue:
        return {"type": "string"}

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return cls._spell_out(value) if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [cls._short_schema(), handler.resolve_ref_schema(handler(schema))]}


class CountColumn(_Shorthand):
    """A column of counts or names, by its header."""

    column: str

    @classmethod
    def _spell_out(cls, text: str) -> Mapping[str, Any]:
        return {"column": text}

    @property
    def ref(self) -> ColumnRef:
        """The column and what one unit of it is."""
        return ColumnRef(self.column)


class TimeColumn(CountColumn):
    """A column of times, by its header and unit."""

    unit: Literal["s", "min", "h"] = "s"

    @property
    def ref(self) -> ColumnRef:
        """The column and its unit in seconds."""
        return ColumnRef(self.column, {"s": 1.0, "min": 60.0, "h": SECONDS_PER_HOUR}[self.unit])


class ShareColumn(CountColumn):
    """A column of utilisations, by its header and unit."""

    unit: Literal["fraction", "percent"] = "fraction"

    @property
    def ref(self) -> ColumnRef:
        """The column and its unit as a fraction."""
        return ColumnRef(self.column, {"fraction": 1.0, "percent": 0.01}[self.unit])


class Columns(_Model):
    """Which column of a job table says what."""

    arrival: TimeColumn
    duration: TimeColumn
    cores: CountColumn | None = None
    gpus: CountColumn | None = None
    cpu_util: ShareColumn | None = None
    gpu_util: ShareColumn | None = None
    job_class: CountColumn | None = Field(default=None, alias="class")


class JobDefaults(_Model):
    """What holds for every job where the table has no column."""

    cores: PositiveInt | None = None
    gpus: NonNegativeInt = 0
    cpu_util: Share = 0.5
    gpu_util: Share = 0.5


class PublishedWorkload(_Model):
    """The generator of the published experiment.

    `rate` multiplies its arrival rate; `keep` thins the jobs by class.
    """

    rate: PositiveFloat = 1.0
    keep: dict[Kept, Share] = Field(default_factory=dict)


class Workload(_Model):
    """Where the jobs come from: exactly one of `published`, `csv` and `parquet`.

    `columns`, `defaults`, `performance_classes` (classes whose jobs are performance jobs) and `split_at_cores` (wider
    jobs become several of at most that many cores, as the workers of a distributed job) describe a table.
    """

    published: PublishedWorkload | None = None
    csv: str | None = None
    parquet: str | None = None
    columns: Columns | None = None
    defaults: JobDefaults = JobDefaults()
    performance_classes: tuple[str, ...] = ()
    split_at_cores: PositiveInt | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        given = [name for name in ("published", "csv", "parquet") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"needs exactly one of published, csv, parquet; has {' and '.join(given) or 'none'}")
        if self.published:
            for name in self.model_fields_set - {"published"}:
                raise ContradictionError(name, "describes a csv or parquet table, this workload is published")
        elif self.columns is None:
            raise ContradictionError("columns", "missing: say which column is arrival and which is duration")
        elif self.columns.cores is None and self.defaults.cores is None:
            raise ContradictionError("columns", "cores has neither a column here nor a value under defaults; give one")
        return self

    def table(self) -> JobTableSpec:
        """The table to read, where the workload is one."""
        assert self.columns is not None
        columns = {name: ref.ref for name, ref in iter(self.columns) if ref is not None}
        if "job_class" in columns:
            columns["class"] = columns.pop("job_class")
        return JobTableSpec(
            path=Path(self.csv or self.parquet or ""),
            format="csv" if self.csv else "parquet",
            columns=columns,
            defaults=self.defaults.model_dump(exclude_none=True),
        )


class LinearCooling(_Model):
    """The linear proxy; `rated_it_w` is the cluster's peak power if not given."""

    rated_it_w: PositiveFloat | None = None


class FmuInputs(_Model):
    """Names of the FMU's inputs."""

    it_w: str = "Q_IT"
    outdoor_k: str = "T_outdoor"


class FmuOutputs(_Model):
    """Names of the FMU's outputs."""

    cooling_w: str = "P_cooling"
    room_k: str = "T_indoor"
    cop: str = "COP"


class FmuCooling(_Model):
    """A co-simulation FMU: its variables, parameters to set, and its communication step if not its own."""

    file: str
    inputs: FmuInputs = FmuInputs()
    outputs: FmuOutputs = FmuOutputs()
    parameters: dict[str, float] = Field(default_factory=dict)
    step_s: PositiveFloat | None = None


class Cooling(_Shorthand):
    """The cooling plant: at most one of `linear`, `dx` and `fmu`; or the words none, linear, dx.

    `coupling` says when it runs: over the finished run, or in the loop, a step of the cluster and a step of the plant
    in turn. Both give the same numbers as long as no decision reads the plant; in the loop a plant that fails ends the
    run at once.
    """

    linear: LinearCooling | None = None
    dx: DxParameters | None = None
    fmu: FmuCooling | None = None
    coupling: Literal["after", "in-loop"] = "after"

    @classmethod
    def _spell_out(cls, text: str) -> Mapping[str, Any]:
        if text not in ("none", "linear", "dx"):
            raise ValueError(f"must be none, linear, dx or a mapping with linear, dx or fmu; got {text!r}")
        return {} if text == "none" else {text: {}}

    @classmethod
    def _short_schema(cls) -> JsonSchemaValue:
        return {"enum": ["none", "linear", "dx"]}

    @model_validator(mode="after")
    def _one_plant(self) -> Self:
        given = [name for name in ("linear", "dx", "fmu") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"has {' and '.join(given)}; name one plant")
        return self

    @property
    def kind(self) -> str:
        """Name of the plant, ``none`` without one."""
        return next((name for name in ("linear", "dx", "fmu") if getattr(self, name) is not None), "none")


class Scenario(_Model):
    """A datacentre, its work and its weather.

    Attributes:
        name: shown in records and reports.
        description: one sentence about what the scenario is for.
        cluster: pools of identical nodes.
        workload: where the jobs come from.
        schedulers: by name; the first one is what the others are compared to.
        mode: drop (a job that does not fit is gone) or queue (it waits, and empty nodes sleep).
        queue: power and sleep of nodes in mode queue.
        hours: length of the arrivals, h.
        drain_hours: time after the arrivals for the queue to empty, h; mode queue only.
        step_s: length of a step, s.
        seeds: one run each.
        climate: outdoor temperature.
        cooling: the plant, `none` for IT power alone.
    """

    name: Annotated[str, Field(min_length=1)]
    description: str = ""
    cluster: Cluster
    workload: Workload
    schedulers: Annotated[tuple[Annotated[str, AfterValidator(_known_scheduler)], ...], Field(min_length=1)] = (
        "most-allocated",
        "joulie",
    )
    mode: Literal["drop", "queue"] = "drop"
    queue: QueueSettings = QueueSettings()
    hours: PositiveFloat
    drain_hours: NonNegativeFloat = 0.0
    step_s: PositiveFloat = 60.0
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (42,)
    climate: Climate = Climate()
    cooling: Cooling = Cooling()

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        for name in ("schedulers", "seeds"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ContradictionError(name, f"names one twice: {', '.join(map(str, getattr(self, name)))}")
        for name in ("hours", "drain_hours"):
            steps = getattr(self, name) * SECONDS_PER_HOUR / self.step_s
            if abs(steps - round(steps)) > 1e-9 * max(steps, 1.0):
                raise ContradictionError(
                    name, f"{getattr(self, name):g} h is no whole number of {self.step_s:g} s steps"
                )
        if self.mode == "drop":
            for name in {"queue", "drain_hours"} & self.model_fields_set:
                raise ContradictionError(name, "has no meaning in mode drop; set mode: queue or leave it out")
        skipped_h = _QUEUE_WINDOW_START_H if self.mode == "queue" else 0.0
        if self.n_steps < 2 + skipped_h * SECONDS_PER_HOUR / self.step_s:
            since = " after hour 2, where it begins in mode queue" if skipped_h else ""
            raise ContradictionError("hours", f"the spread of power needs two steps{since}; make the run longer")
        return self

    @property
    def n_arrival_steps(self) -> int:
        """Steps in which jobs arrive."""
        return round(self.hours * SECONDS_PER_HOUR / self.step_s)

    @property
    def n_steps(self) -> int:
        """Steps of the whole run, drain included."""
        return self.n_arrival_steps + round(self.drain_hours * SECONDS_PER_HOUR / self.step_s)
