"""Schema of experiments: hardware, trace, variants of control, physics, weather, grid, seeds.

The models are the schema, as in `joulie_lab.simulation.scenario`. Operator settings have their documented names, with
times in simulated time, so that the settings of the best variant can be copied into a cluster's manifest.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import (
    BaseModel,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from joulie_lab.simulation.climate import Climate
from joulie_lab.simulation.job_response import IdleStates
from joulie_lab.simulation.model_files import STRICT
from joulie_lab.simulation.scenario import MAX_HOURS, ContradictionError, Cooling
from joulie_lab.simulation.schedulers import extender_aim
from joulie_lab.simulation.workloads.settings import GeneratorSettings

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$", max_length=40)]
Throughput = Literal["measured", "published"]
SchemeName = Literal["node-wide", "best", "best-all"]
GpuWork = Literal["equal", "pinned", "speeds"]


class _Model(BaseModel):
    model_config = STRICT


class NodeGroup(_Model):
    """Group of identical nodes.

    Attributes:
        name: name of the group; its nodes are ``NAME-0``, ``NAME-1``, ...
        count: number of nodes.
        cpu: CPU model, by its name in the hardware catalogue.
        sockets: number of CPU packages of a node.
        cores: allocatable cores of a node; defaults to the cores of its CPUs.
        memory_gib: allocatable memory of a node, GiB.
        gpu: GPU model, by its name in the hardware catalogue.
        gpus: number of GPUs of a node.
        gpu_speed: rate of work on one of these GPUs, over that on the GPU that the jobs' work is told in; counts where
            the experiment's `gpu_work` is ``speeds``.
        labels: node labels, in addition to those that name the hardware.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=40)]
    count: PositiveInt
    cpu: str
    sockets: PositiveInt = 2
    cores: PositiveFloat | None = None
    memory_gib: PositiveFloat = 1024.0
    gpu: str | None = None
    gpus: NonNegativeInt = 0
    gpu_speed: PositiveFloat = 1.0
    labels: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _gpus_have_a_model(self) -> Self:
        if (self.gpu is None) != (self.gpus == 0):
            raise ContradictionError("gpus", "a GPU model and a number of GPUs belong together")
        return self


class Hardware(_Model):
    """Nodes of the cluster: either `groups`, or a YAML `file` with groups."""

    groups: tuple[NodeGroup, ...] = ()
    file: str | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if bool(self.groups) == (self.file is not None):
            raise ValueError("needs either groups or a file with groups")
        names = [group.name for group in self.groups]
        if len(set(names)) < len(names):
            raise ContradictionError("groups", "two groups have one name")
        return self


class TraceWorkload(_Model):
    """Source of the jobs: a `trace` file (JSON lines, ``.gz`` or not), or `generate`, seeded by the run.

    Attributes:
        trace: path of the trace file.
        generate: settings of the generator.
        skip_bad_lines: whether to skip invalid lines of the file; they are counted in any case.
        repeats: share of the workloads with GPUs that are another run of an earlier one, where there is one of the same
            family and size: they respond to power limits as that one did, and limits that were found for it are known.
    """

    trace: str | None = None
    generate: GeneratorSettings | None = None
    skip_bad_lines: bool = False
    repeats: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.trace is None) == (self.generate is None):
            raise ValueError("needs either trace or generate; the other is null")
        return self


class Variant(_Model):
    """A configuration of Joulie and the scheduler under which the trace runs.

    Attributes:
        name: short name, shown in tables.
        description: description in one sentence.
        joulie: whether Joulie runs; without it there are no operator, agents and extender.
        operator: operator settings by their documented names (POLICY_TYPE, STATIC_HP_FRAC, ...), times in simulated
            time.
        scheduler: `joulie` is kube-scheduler with the extender, `joulie-energy` the same with SCORING=energy, `kube`
            kube-scheduler alone; the other names are schedulers of `joulie simulate`, for native runs only.
        gpu_limit_pct: fixed power limit of all GPUs, % of the default one, as `nvidia-smi -pl` sets it; native runs.
        gpu_scheme: other limits of GPUs, native runs. ``node-wide``: one for all GPUs of a node by POLCA's thresholds
            of its power; ``best``: for each standard job the one with the least energy within 5 % slowdown, in
            hindsight; ``best-all``: also for performance jobs, within 2 %.
        without_caps: name of the variant that this one equals except for its caps: the saving of this one is the part
            of that one's saving that comes from placement.
    """

    name: Name
    description: str = ""
    joulie: bool = True
    operator: dict[str, str] = Field(default_factory=dict)
    scheduler: str = "joulie"
    gpu_limit_pct: Annotated[float, Field(gt=0.0, le=100.0)] | None = None
    gpu_scheme: SchemeName | None = None
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
    """Intervals at which operator and agents act, s of simulated time."""

    operator_s: PositiveFloat = 60.0
    agent_s: PositiveFloat = 20.0


class Physics(_Model):
    """Physics assumptions; results are reported for each combination.

    Attributes:
        idle_states: which nodes enter deep idle states.
        gpu_throughput: models of how GPU work slows under a power limit.
    """

    idle_states: Annotated[tuple[IdleStates, ...], Field(min_length=1)] = (IdleStates.ALL,)
    gpu_throughput: Annotated[tuple[Throughput, ...], Field(min_length=1)] = ("measured",)


class GridSeries(_Model):
    """Carbon intensity and price over the run, for accounting: a CSV or Parquet file each, or a constant.

    Attributes:
        intensity_g_per_kwh: constant carbon intensity, gCO2eq/kWh.
        intensity_file: file with carbon intensities: a column of times and one of values.
        price_per_kwh: constant price, currency/kWh.
        currency: currency of the price.
    """

    intensity_g_per_kwh: NonNegativeFloat | None = None
    intensity_file: str | None = None
    price_per_kwh: NonNegativeFloat | None = None
    currency: str = "USD"


class Experiment(_Model):
    """An experiment: one trace under several variants, with one run for each variant, seed and physics.

    Attributes:
        name: name, shown in records and reports.
        description: purpose of the experiment.
        cluster: nodes of the cluster.
        workload: source of the jobs.
        variants: variants to compare; the first one is the baseline.
        control: intervals of operator and agents.
        physics: physics assumptions.
        gpu_work: what a GPU-hour of a job is worth on other GPUs. ``equal``: the same work on every GPU; ``speeds``: by
            `gpu_speed` of the node group; ``pinned``: each workload names one GPU model of the cluster, drawn by the
            number of its GPUs, so that nothing can be moved.
        hours: length of the arrivals, h; jobs of a trace that are submitted later are left out, and counted.
        drain_hours: time after the arrivals for jobs to finish, h. Every run lasts hours + drain_hours, so that a
            faster variant is charged for its idle time at the end.
        climate: climate, for the outdoor temperature.
        cooling: cooling plant.
        grid: carbon intensity and price.
        seeds: seeds; each draws its own trace if traces are generated, and breaks the scheduler's ties.
    """

    name: Annotated[str, Field(min_length=1)]
    description: str = ""
    cluster: Hardware
    workload: TraceWorkload
    variants: Annotated[tuple[Variant, ...], Field(min_length=1)]
    control: ControlTimes = ControlTimes()
    physics: Physics = Physics()
    gpu_work: GpuWork = "equal"
    hours: Annotated[PositiveFloat, Field(le=MAX_HOURS)]
    drain_hours: Annotated[NonNegativeFloat, Field(le=MAX_HOURS)] = 24.0
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
