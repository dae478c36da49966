"""The schema of scenarios: cluster, workload, schedulers, climate, cooling plant, duration and seeds.

Validation is strict: numbers are not converted from text, NaN is invalid, and unknown keys are rejected.
`joulie_lab.simulation.scenario_files` reads scenarios from YAML.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
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
from joulie_lab.simulation.model_files import STRICT

# The simulation's own dataclasses are part of the schema, so they are validated in the same way.
for _part in (Cluster, NodePool, Climate, DxParameters, QueueSettings):
    with_config(STRICT)(_part)

Share = Annotated[float, Field(ge=0.0, le=1.0)]
Kept = Literal["small-cpu", "medium-cpu", "gpu-training", "gpu-inference", "large-cpu", "cpu-above-8-cores"]
MAX_HOURS = 10 * 366 * 24.0
"""Longest simulation, h: ten years. The series of all steps are held in memory."""
_QUEUE_WINDOW_START_H = 2.0


class ContradictionError(ValueError):
    """A value that contradicts another one.

    Attributes:
        quantity: the invalid key, within the model that found it.
    """

    def __init__(self, quantity: str, problem: str) -> None:
        super().__init__(problem)
        self.quantity = quantity


def _known_scheduler(name: str) -> str:
    if name not in SCHEDULERS:
        raise UnknownSchedulerError(name, SCHEDULERS)
    return name


class _Model(BaseModel):
    model_config = STRICT


class _Shorthand(_Model):
    """A model that may also be given as a single string."""

    @classmethod
    def _expand(cls, text: str) -> Mapping[str, Any]:
        """The keys and values for which `text` is shorthand."""
        raise AssertionError("a shorthand model must implement _expand")

    @classmethod
    def _shorthand_schema(cls) -> JsonSchemaValue:
        return {"type": "string"}

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, value: Any) -> Any:
        return cls._expand(value) if isinstance(value, str) else value

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [cls._shorthand_schema(), handler.resolve_ref_schema(handler(schema))]}


class CountColumn(_Shorthand):
    """A column of counts or names."""

    column: str

    @classmethod
    def _expand(cls, text: str) -> Mapping[str, Any]:
        return {"column": text}

    @property
    def ref(self) -> ColumnRef:
        """Reference to the column, with factor 1."""
        return ColumnRef(self.column)


class TimeColumn(CountColumn):
    """A column of times in a unit."""

    unit: Literal["s", "min", "h"] = "s"

    @property
    def ref(self) -> ColumnRef:
        """Reference to the column, with the factor to seconds."""
        return ColumnRef(self.column, {"s": 1.0, "min": 60.0, "h": SECONDS_PER_HOUR}[self.unit])


class ShareColumn(CountColumn):
    """A column of utilisations in a unit."""

    unit: Literal["fraction", "percent"] = "fraction"

    @property
    def ref(self) -> ColumnRef:
        """Reference to the column, with the factor to a fraction of 1."""
        return ColumnRef(self.column, {"fraction": 1.0, "percent": 0.01}[self.unit])


class Columns(_Model):
    """The column of a job table for each field."""

    arrival: TimeColumn
    duration: TimeColumn
    cores: CountColumn | None = None
    gpus: CountColumn | None = None
    cpu_util: ShareColumn | None = None
    gpu_util: ShareColumn | None = None
    job_class: CountColumn | None = Field(default=None, alias="class")


class JobDefaults(_Model):
    """Values for every job of a table, for fields without a column."""

    cores: PositiveInt | None = None
    gpus: NonNegativeInt = 0
    cpu_util: Share = 0.5
    gpu_util: Share = 0.5


class PublishedWorkload(_Model):
    """The job generator of the published experiment.

    `rate` multiplies its arrival rate; `keep` thins the jobs: the probability to keep a job, by class.
    """

    rate: PositiveFloat = 1.0
    keep: dict[Kept, Share] = Field(default_factory=dict)


class Workload(_Model):
    """The source of the jobs: exactly one of `published`, `csv` and `parquet`.

    `columns`, `defaults`, `performance_classes` (classes whose jobs are performance jobs) and `split_at_cores` (wider
    jobs are split into several of at most that many cores, like the workers of a distributed job) describe a table.
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
            raise ValueError(f"needs exactly one of published, csv, parquet; got {' and '.join(given) or 'none'}")
        if self.published:
            for name in self.model_fields_set - {"published"}:
                raise ContradictionError(name, "describes a csv or parquet table, this workload is published")
        elif self.columns is None:
            raise ContradictionError("columns", "missing: name the columns of arrival and duration")
        elif self.columns.cores is None and self.defaults.cores is None:
            raise ContradictionError("columns", "cores has neither a column here nor a value under defaults; give one")
        return self

    def table(self) -> JobTableSpec:
        """The job table to read, for a CSV or Parquet workload."""
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
    """The linear proxy; `rated_it_w` defaults to the cluster's peak power."""

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
    """A co-simulation FMU: variable names, parameters to set, and a communication step other than the FMU's own."""

    file: str
    inputs: FmuInputs = FmuInputs()
    outputs: FmuOutputs = FmuOutputs()
    parameters: dict[str, float] = Field(default_factory=dict)
    step_s: PositiveFloat | None = None


class Cooling(_Shorthand):
    """The cooling plant: at most one of `linear`, `dx` and `fmu`; or one of the strings none, linear, dx.

    `coupling` sets when the plant runs: over the finished run, or in the loop, alternating with the steps of the
    cluster. Both give the same numbers as long as no decision reads the plant; in the loop, a failure of the plant ends
    the run at once.
    """

    linear: LinearCooling | None = None
    dx: DxParameters | None = None
    fmu: FmuCooling | None = None
    coupling: Literal["after", "in-loop"] = "after"

    @classmethod
    def _expand(cls, text: str) -> Mapping[str, Any]:
        if text not in ("none", "linear", "dx"):
            raise ValueError(f"must be none, linear, dx or a mapping with linear, dx or fmu; got {text!r}")
        return {} if text == "none" else {text: {}}

    @classmethod
    def _shorthand_schema(cls) -> JsonSchemaValue:
        return {"enum": ["none", "linear", "dx"]}

    @model_validator(mode="after")
    def _one_plant(self) -> Self:
        given = [name for name in ("linear", "dx", "fmu") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"has {' and '.join(given)}; name one plant")
        return self

    @property
    def kind(self) -> str:
        """Name of the plant; ``none`` without cooling."""
        return next((name for name in ("linear", "dx", "fmu") if getattr(self, name) is not None), "none")


class Scenario(_Model):
    """A simulated datacentre: cluster, workload, schedulers, climate and cooling.

    Attributes:
        name: shown in records and reports.
        description: one sentence about the purpose of the scenario.
        cluster: pools of identical nodes.
        workload: source of the jobs.
        schedulers: names of schedulers; the first one is the baseline.
        mode: drop (a job that does not fit is dropped) or queue (it waits, and empty nodes sleep).
        queue: power and sleep settings of nodes in mode queue.
        hours: length of the arrival period, h.
        drain_hours: time after the arrival period for the queue to empty, h; mode queue only.
        step_s: length of a step, s.
        seeds: seeds, one run each.
        climate: outdoor temperature.
        cooling: cooling plant; `none` for IT power only.
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
    hours: Annotated[PositiveFloat, Field(le=MAX_HOURS)]
    drain_hours: Annotated[NonNegativeFloat, Field(le=MAX_HOURS)] = 0.0
    step_s: PositiveFloat = 60.0
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (42,)
    climate: Climate = Climate()
    cooling: Cooling = Cooling()

    @model_validator(mode="after")
    def _is_consistent(self) -> Self:
        for name in ("schedulers", "seeds"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise ContradictionError(name, f"duplicates: {', '.join(map(str, getattr(self, name)))}")
        for name in ("hours", "drain_hours"):
            steps = getattr(self, name) * SECONDS_PER_HOUR / self.step_s
            if abs(steps - round(steps)) > 1e-9 * max(steps, 1.0):
                raise ContradictionError(
                    name, f"{getattr(self, name):g} h is not a multiple of the {self.step_s:g} s step"
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
        """Number of steps in which jobs arrive."""
        return round(self.hours * SECONDS_PER_HOUR / self.step_s)

    @property
    def n_steps(self) -> int:
        """Number of steps of the whole run, including the drain time."""
        return self.n_arrival_steps + round(self.drain_hours * SECONDS_PER_HOUR / self.step_s)
