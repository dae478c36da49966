"""What an experiment may say: hardware, trace, variants of control, physics, weather, grid, seeds.

The models are the schema, as in `joulie_lab.simulation.scenario`. Settings of the operator stand under their documented
names and in simulated time, so that what wins here is copied into a cluster's manifest as it is.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
    with_config,
)

from joulie_lab.simulation.climate import Climate
from joulie_lab.simulation.job_response import IdleStates
from joulie_lab.simulation.scenario import ContradictionError, Cooling
from joulie_lab.simulation.schedulers import extender_aim
from joulie_lab.simulation.workloads.settings import GENERATOR_PARTS, GeneratorSettings

_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)
for _part in GENERATOR_PARTS:
    with_config(_STRICT)(_part)

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=40)]
Throughput = Literal["measured", "published"]


class _Model(BaseModel):
    model_config = _STRICT


class NodeGroup(_Model):
    """Identical nodes.

    Attributes:
        name: of the group; its nodes are ``NAME-0``, ``NAME-1``, ...
        count: number of nodes.
        cpu: CPU model, as the hardware catalogue knows it.
        sockets: CPUs of a node.
        cores: cores that pods can request; those of the CPUs where it is left out.
        memory_gib: memory that pods can request, GiB.
        gpu: GPU model, as the catalogue knows it.
        gpus: GPUs of a node.
        labels: of the nodes, beside those that name the hardware.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
    count: PositiveInt
    cpu: str
    sockets: PositiveInt = 2
    cores: PositiveFloat | None = None
    memory_gib: PositiveFloat = 1024.0
    gpu: str | None = None
    gpus: NonNegativeInt = 0
    labels: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _gpus_have_a_model(self) -> Self:
        if (self.gpu is None) != (self.gpus == 0):
            raise ContradictionError("gpus", "a GPU model and a number of GPUs belong together")
        return self


class Hardware(_Model):
    """The nodes: either `groups`, or the `file` (YAML) that has them."""

    groups: tuple[NodeGroup, ...] = ()
    file: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.groups) == (self.file is not None):
            raise ValueError("needs either groups or a file that has them")
        names = [group.name for group in self.groups]
        if len(set(names)) < len(names):
            raise ContradictionError("groups", "two groups have one name")
        return self


class TraceWorkload(_Model):
    """Where the jobs come from: the `trace` file (JSON lines, ``.gz`` or not), or `generate`, seeded by the run.

    Attributes:
        trace: path of the file.
        generate: knobs of the generator.
        skip_bad_lines: go on without the broken lines of the file; they are counted in any case.
    """

    trace: str | None = None
    generate: GeneratorSettings | None = None
    skip_bad_lines: bool = False

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.trace is None) == (self.generate is None):
            raise ValueError("needs either trace or generate; the other is null")
        return self


class Variant(_Model):
    """One way to run the cluster.

    Attributes:
        name: shown in tables; short.
        description: one sentence.
        joulie: whether Joulie runs at all; without it there are no operator, agents and extender.
        operator: settings of the operator by their documented names (POLICY_TYPE, STATIC_HP_FRAC, ...), times in
            simulated time.
        scheduler: `joulie` is kube-scheduler with the extender, `joulie-energy` the same with SCORING=energy, `kube`
            kube-scheduler alone; the other names are schedulers of `joulie simulate`, natively only.
        without_caps: the variant that this one is but for its caps: it tells what of that one's saving is placement.
    """

    name: Name
    description: str = ""
    joulie: bool = True
    operator: dict[str, str] = Field(default_factory=dict)
    scheduler: str = "joulie"
    without_caps: Name | None = None

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        if not self.joulie:
            if self.operator:
                raise ContradictionError("operator", "has no meaning with joulie: false")
            if extender_aim(self.scheduler) is not None:
                raise ContradictionError("scheduler", "joulie: false has no extender; say scheduler: kube")
        return self


class ControlTimes(_Model):
    """How often the programs act, s of simulated time."""

    operator_s: PositiveFloat = 60.0
    agent_s: PositiveFloat = 20.0


class Physics(_Model):
    """Assumptions that results are shown under, side by side where there are several.

    Attributes:
        idle_states: which nodes enter deep idle states.
        gpu_throughput: how GPU work slows under a limit.
    """

    idle_states: Annotated[tuple[IdleStates, ...], Field(min_length=1)] = (IdleStates.ALL,)
    gpu_throughput: Annotated[tuple[Throughput, ...], Field(min_length=1)] = ("measured",)


class GridSeries(_Model):
    """Carbon intensity and price over the run, for accounting: a CSV or Parquet file each, or a constant.

    Attributes:
        intensity_g_per_kwh: constant carbon intensity, gCO2eq/kWh.
        intensity_file: file of it, with a column of times and one of values.
        price_per_kwh: constant price, currency/kWh.
        currency: of the price.
    """

    intensity_g_per_kwh: NonNegativeFloat | None = None
    intensity_file: str | None = None
    price_per_kwh: NonNegativeFloat | None = None
    currency: str = "USD"


class Experiment(_Model):
    """One trace under several variants, each seed and physics a run.

    Attributes:
        name: shown in records and reports.
        description: what it is for.
        cluster: the nodes.
        workload: the jobs.
        variants: the first one is what the others are compared to.
        control: how often operator and agents act.
        physics: assumptions.
        hours: length of the arrivals, h; jobs of a trace that come later are left out, and counted.
        drain_hours: time after the arrivals for the work to end, h. Every run lasts hours + drain_hours, so that all
            variants idle for what they are quicker.
        climate: outdoor temperature.
        cooling: the plant.
        grid: carbon and price.
        seeds: one trace each where it is generated; each seeds ties of the scheduler, too.
    """

    name: Annotated[str, Field(min_length=1)]
    description: str = ""
    cluster: Hardware
    workload: TraceWorkload
    variants: Annotated[tuple[Variant, ...], Field(min_length=1)]
    control: ControlTimes = ControlTimes()
    physics: Physics = Physics()
    hours: PositiveFloat
    drain_hours: NonNegativeFloat = 24.0
    climate: Climate = Climate(mean_c=22.0, daily_amplitude_k=8.0, slow_amplitude_k=0.0, noise_std_k=0.0)
    cooling: Cooling = Cooling()
    grid: GridSeries = GridSeries()
    seeds: Annotated[tuple[NonNegativeInt, ...], Field(min_length=1)] = (1,)

    @model_validator(mode="after")
    def _belongs_together(self) -> Self:
        names = [variant.name for variant in self.variants]
        if len(set(names)) < len(names):
            raise ContradictionError("variants", "two variants have one name")
        for index, variant in enumerate(self.variants):
            if variant.without_caps is not None and variant.without_caps not in names:
                raise ContradictionError(
                    f"variants.{index}.without_caps", f"no variant {variant.without_caps}; there are {', '.join(names)}"
                )
        if len(set(self.seeds)) < len(self.seeds):
            raise ContradictionError("seeds", "one is named twice")
        return self
