"""``joulie bench``: the benchmarks, each a command with a table, a plot, JSON and committed ranges."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter, process_time
from typing import TYPE_CHECKING, Any

import click

from joulie.program.commands import CommandGroup
from joulie.program.errors import UserError
from joulie.program.tables import print_table
from joulie_lab.apps.bench.data import published_jobs, published_systems, published_trace, published_zones
from joulie_lab.apps.bench.fetch import fetch
from joulie_lab.apps.bench.run import OUTPUT, PATH, Benchmark, common, run_benchmark, tell
from joulie_lab.apps.bench.tables import print_equal_work, print_parity
from joulie_lab.program.lists import items, whole

if TYPE_CHECKING:
    from joulie_lab.benchmarks.traces import Plan as TracesPlan
    from joulie_lab.program.parallel import Executor
    from joulie_lab.simulation.experiment.plan import RunKey
    from joulie_lab.simulation.experiment.scenario import Experiment

_CHART = Path("deploy/helm/joulie")
_SUMMARIES: dict[str, str] = {}
"""What each benchmark measures, by its name."""


@click.group(cls=CommandGroup, path="bench")
def bench() -> None:
    """Run the benchmarks that Joulie is judged by.

    Each prints a table and checks its figures against committed ranges: exit status 1, and a line for each range
    that is missed.
    """


bench.add_command(fetch)


def _benchmark(name: str, summary: str) -> Callable[[Callable[..., Benchmark]], click.Command]:
    """A command of this group: what is decorated makes the benchmark of ``small`` and its own options."""
    _SUMMARIES[name] = summary

    def decorate(make: Callable[..., Benchmark]) -> click.Command:
        @functools.wraps(make)
        def command(
            *,
            small: bool,
            json_file: Path | None,
            plots_folder: Path | None,
            ranges_file: Path | None,
            output: str,
            **own: Any,
        ) -> None:
            run_benchmark(
                name,
                make(small=small, **own),
                small=small,
                output=output,
                json_file=json_file,
                plots_folder=plots_folder,
                ranges_file=ranges_file,
            )

        return bench.command(name, help=f"Measure {summary}.")(common(command))

    return decorate


@bench.command("list")
@OUTPUT
def list_benchmarks(*, output: str) -> None:
    """List the benchmarks."""
    if output != "table":
        from joulie.program.documents import print_document

        rows = [{"name": name, "summary": summary} for name, summary in _SUMMARIES.items()]
        print_document(rows, output)
        return
    width = max(map(len, _SUMMARIES))
    for name, summary in _SUMMARIES.items():
        click.echo(f"{name:<{width}}  {summary}")


@_benchmark("parity", "the published figures to every digit, and the speed of the engine")
def parity(*, small: bool) -> Benchmark:
    """Measure parity and speed."""
    from rich.console import Console

    from joulie_lab.benchmarks import parity as benchmark
    from joulie_lab.benchmarks.plots import parity_growth

    def run() -> dict[str, Any]:
        chosen = benchmark.SMALL if small else benchmark.FULL
        console = Console(stderr=True)
        if not console.is_terminal:
            return benchmark.measure(chosen, perf_counter, tell)
        with console.status("") as status:
            return benchmark.measure(chosen, perf_counter, status.update)

    return Benchmark(run, print_parity, parity_growth)


@_benchmark("equal-work", "all schedulers doing the same work on nodes that may sleep, beside a lower bound")
@click.option("--seeds", metavar="N,...", help="Seeds to report.  [default: the eight that nothing is tuned on]")
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at a time.  [default: one a core]")
@click.option(
    "--executor", metavar="local|dask[://HOST:PORT]", default="local", show_default=True, help="Where to run."
)
def equal_work(*, small: bool, seeds: str | None, jobs: int | None, executor: str) -> Benchmark:
    """Measure the honest placement benchmark."""
    from joulie_lab.benchmarks.plots import equal_work as plot
    from joulie_lab.program.parallel import Executor

    where = Executor.parse(executor, jobs)

    def run() -> dict[str, Any]:
        return _measure_equal_work(_seeds(seeds), where, small=small)

    return Benchmark(run, print_equal_work, plot)


@_benchmark("extender", "how long kube-scheduler waits for the extender, beside one that answers with constants")
def extender(*, small: bool) -> Benchmark:
    """Measure the scheduler extender."""
    from joulie_lab.benchmarks import extender as benchmark

    def run() -> dict[str, Any]:
        return benchmark.measure(benchmark.SMALL if small else benchmark.FULL, tell)

    def show(measured: Mapping[str, Any]) -> None:
        print_table(
            "Response times",
            ("", "verb", "candidates", "p50, ms", "p99, ms", "p99 of all rounds"),
            benchmark.rows(measured),
        )

    return Benchmark(run, show, benchmark.plot)


@_benchmark("binding", "pods that the real kube-scheduler binds in a second, with and without an extender")
@click.option(
    "--chart",
    type=PATH,
    default=_CHART,
    show_default=True,
    help="Joulie's chart: the policies of steering by admission.",
)
def binding(*, small: bool, chart: Path) -> Benchmark:
    """Measure the scheduler's throughput on a local control plane."""
    from joulie_lab.benchmarks import binding as benchmark

    if not (chart / "Chart.yaml").exists():
        raise UserError(f"{chart} is not Joulie's chart: name its folder with --chart")

    def run() -> dict[str, Any]:
        chosen = benchmark.SMALL if small else benchmark.FULL
        return benchmark.measure(chosen, chart, tell)

    def show(measured: Mapping[str, Any]) -> None:
        columns = ("nodes", *benchmark.WAYS, *benchmark.RATIOS)
        print_table("Bound pods a second; 95 % intervals of ratios", columns, benchmark.rows(measured))

    return Benchmark(run, show, benchmark.plot)


@_benchmark("attribution", "whether the power of nodes and GPUs is conserved among pods, and how far off each pod's is")
def attribution(*, small: bool) -> Benchmark:
    """Measure the attribution of power to pods."""
    from joulie_lab.benchmarks import attribution as benchmark
    from joulie_lab.benchmarks.plots import attribution as plot

    def run() -> dict[str, Any]:
        chosen = benchmark.SMALL if small else benchmark.FULL
        return benchmark.measure(chosen, perf_counter, tell)

    def show(measured: Mapping[str, Any]) -> None:
        print_table(
            "Measured power against the sum of its parts",
            ("", "powers", "largest relative difference", "smallest part, W", "known, %", "pods told, %"),
            benchmark.conservation_rows(measured),
        )
        print_table(
            "Power of pods against what they really draw",
            ("", "pods", "mean error, W", "mean error, %", "charged, %"),
            benchmark.error_rows(measured),
        )

    return Benchmark(run, show, plot)


@_benchmark(
    "power-estimate", "whether estimates of power without sensors hold servers that they were not calibrated on"
)
@click.option("--data", type=PATH, help="Copy of the published results; --small makes a sample instead.")
def power_estimate(*, small: bool, data: Path | None) -> Benchmark:
    """Measure the intervals of power estimates on published SPECpower results."""
    from joulie_lab.adapters.published.specpower import read_systems, synthetic_table
    from joulie_lab.benchmarks import power_estimate as benchmark
    from joulie_lab.benchmarks.plots import power_estimate as plot

    table = read_systems(synthetic_table(seed=1)) if small else published_systems(data)

    def run() -> dict[str, Any]:
        return benchmark.measure(table, tell)

    def show(measured: Mapping[str, Any]) -> None:
        columns = ("", "calibrated", *(name.replace("_", " ") for name in benchmark.SPLITS), "worst")
        print_table(
            "Servers within the interval, %, and the worst group of them", columns, benchmark.coverage_rows(measured)
        )
        print_table(
            "Calibrated, and the median error of what is expected",
            ("", "W", "size to the power", "low", "high", "error, %"),
            benchmark.calibration_rows(measured),
        )

    return Benchmark(run, show, plot)


@_benchmark("profiles", "whether learned trees say more of workloads than the classifier's rules")
@click.option("--train", "trees_file", type=PATH, help="Write the trees, as the module that the classifier imports.")
def profiles(*, small: bool, trees_file: Path | None) -> Benchmark:
    """Measure the classifier's rules and trees on simulated workloads."""
    from joulie_lab.benchmarks import profiles as benchmark
    from joulie_lab.benchmarks.plots import profiles as plot

    if trees_file is not None and small:
        raise UserError("--train needs all workloads: leave out --small")

    def run() -> dict[str, Any]:
        if small:
            return benchmark.measure(benchmark.SMALL, None, tell)
        try:
            found = benchmark.trained(benchmark.TRAINING, tell)
        except ImportError as error:
            raise UserError(f"training needs the extra `learn`: {error}") from error
        if trees_file is not None:
            trees_file.write_text(benchmark.module_of(found.trees), encoding="utf-8")
        return benchmark.measure(benchmark.FULL, found, tell)

    def show(measured: Mapping[str, Any]) -> None:
        print_table(
            "Right, % / cost of a wrong level",
            (
                "workloads",
                "what",
                *(name.replace("_", " ") for name in benchmark.CONTENDERS),
                "saved against the rules",
            ),
            benchmark.rows(measured),
        )

    return Benchmark(run, show, plot)


@_benchmark("deferral", "how much waiting for clean power saves, of what it would if the future were known")
@click.option("--data", type=PATH, help="Folder with published carbon intensities; --small makes some instead.")
@click.option("--jobs", "jobs_file", type=PATH, help="The published job trace; --small makes one instead.")
def deferral(*, small: bool, data: Path | None, jobs_file: Path | None) -> Benchmark:
    """Measure forecasts and deferral against the offline optimum."""
    from joulie_lab.adapters.published.intensity import synthetic_zones
    from joulie_lab.benchmarks import deferral as benchmark
    from joulie_lab.benchmarks import deferral_capacity, deferral_waitawhile
    from joulie_lab.benchmarks.plots import deferral as plot

    zones = synthetic_zones(seed=1) if small else published_zones(data)
    jobs = deferral_capacity.synthetic_jobs(seed=1) if small else published_jobs(jobs_file)

    def run() -> dict[str, Any]:
        chosen = benchmark.SMALL if small else benchmark.FULL
        return benchmark.measure(zones, jobs, chosen, tell)

    def show(measured: Mapping[str, Any]) -> None:
        for part, title in benchmark.PARTS.items():
            columns = benchmark.saving_columns(measured, part)
            print_table(f"Saved, %: {title}", columns, benchmark.saving_rows(measured, part))
        print_table("Mean absolute error, gCO2eq/kWh", benchmark.ERROR_COLUMNS, benchmark.error_rows(measured))
        limited = deferral_capacity.rows(measured["capacity"])
        print_table("Saved with limited CPUs", deferral_capacity.COLUMNS, limited)
        if "waitawhile" in measured:
            repeated = deferral_waitawhile.rows(measured["waitawhile"])
            print_table("Let's Wait Awhile, scenario II: saved, %", deferral_waitawhile.COLUMNS, repeated)

    return Benchmark(run, show, plot)


@_benchmark("openb", "how much GPU placement by each policy gives to pods that share GPUs, and at what power")
@click.option("--data", type=PATH, help="Folder with the published trace.  [default: what `fetch` got]")
def openb(*, small: bool, data: Path | None) -> Benchmark:
    """Measure placement on nodes whose GPUs are shared."""
    from joulie_lab.benchmarks import openb as benchmark
    from joulie_lab.benchmarks.gpu_sharing.arrivals import sample
    from joulie_lab.benchmarks.plots import openb as plot

    trace = (*sample(seed=1), None) if small else published_trace(data)

    def run() -> dict[str, Any]:
        chosen = benchmark.SMALL if small else benchmark.FULL
        return benchmark.measure(*trace, chosen, process_time, tell)

    def show(measured: Mapping[str, Any]) -> None:
        print_table(
            "GPU allocated at 130 % arrived, %", benchmark.PUBLISHED_COLUMNS, benchmark.published_rows(measured)
        )
        for name, policies in {**measured["cases"], **measured["variants"]}.items():
            print_table(f"Beside FGD: {name}", benchmark.COMPARED_COLUMNS, benchmark.compared_rows(policies))
        print_table("By the weight of power", benchmark.FRONTIER_COLUMNS, benchmark.frontier_rows(measured))

    return Benchmark(run, show, plot)


@_benchmark(
    "capping", "how near few measurements come to the best power limit, and if a breaker with too many servers holds"
)
@click.option("--data", type=PATH, help="Folder with published sweeps.  [default: what `fetch` got]")
def capping(*, small: bool, data: Path | None) -> Benchmark:
    """Measure the choice of power limits, and a breaker with too many servers."""
    from joulie_lab.apps.bench.data import published_sweeps
    from joulie_lab.benchmarks import breaker
    from joulie_lab.benchmarks import capping as benchmark
    from joulie_lab.benchmarks.plots import capping as plot

    sweeps = benchmark.synthetic_sweeps(seed=1) if small else published_sweeps(data)

    def run() -> dict[str, Any]:
        choice = benchmark.measure(sweeps, benchmark.SMALL if small else benchmark.FULL, tell)
        return {**choice, "feed": breaker.measure(breaker.SMALL if small else breaker.FULL, tell)}

    def show(measured: Mapping[str, Any]) -> None:
        print_table("Power limits of jobs", benchmark.CHOICE_COLUMNS, benchmark.choice_rows(measured))
        print_table("The same by simpler ways", benchmark.SIMPLER_COLUMNS, benchmark.simpler_rows(measured))
        print_table("A breaker with 30 % more servers", breaker.COLUMNS, breaker.rows(measured["feed"]))

    return Benchmark(run, show, plot)


@_benchmark("native", "what a native run costs, and how that grows with jobs and nodes")
def native(*, small: bool) -> Benchmark:
    """Measure the native runtime."""
    from joulie_lab.benchmarks import native as benchmark

    def run() -> dict[str, Any]:
        return benchmark.measure(benchmark.SMALL if small else benchmark.FULL, process_time, tell)

    def show(measured: Mapping[str, Any]) -> None:
        print_table("CPU time of a run", benchmark.COLUMNS, benchmark.rows(measured))

    return Benchmark(run, show, benchmark.plot)


@_benchmark("traces", "what caps and policies save at equal work, and what of it is caps, placement and an assumption")
@click.option("--seeds", metavar="N,...", help="Seeds to report.  [default: the eight that nothing is tuned on]")
@click.option("--jobs", type=click.IntRange(min=1), help="Runs at a time.  [default: one a core]")
@click.option("--folder", type=PATH, help="Where finished runs are kept.  [default: the user's data]")
@click.option("--frontier", is_flag=True, help="Also run D of hetero-41 with other bounds of slowdown.")
def traces(*, small: bool, seeds: str | None, jobs: int | None, folder: Path | None, frontier: bool) -> Benchmark:
    """Measure the shipped cluster experiments."""
    from joulie_lab.benchmarks import traces as benchmark

    plan = benchmark.SMALL if small else benchmark.FULL

    def run() -> dict[str, Any]:
        return _measure_traces(plan, _seeds(seeds), jobs, folder, frontier=frontier and not small)

    def show(measured: Mapping[str, Any]) -> None:
        print_table("IT energy per work, and saved of it, %", benchmark.SAVED_COLUMNS, benchmark.saved_rows(measured))
        print_table("Where it comes from, points", benchmark.PART_COLUMNS, benchmark.part_rows(measured))
        print_table("What jobs pay", benchmark.QUALITY_COLUMNS, benchmark.quality_rows(measured))
        if "frontier" in measured:
            print_table("D by its bound", benchmark.FRONTIER_COLUMNS, benchmark.frontier_rows(measured))

    return Benchmark(run, show, benchmark.plot)


def _measure_traces(
    plan: TracesPlan, seeds: tuple[int, ...] | None, jobs: int | None, folder: Path | None, *, frontier: bool
) -> dict[str, Any]:
    """Make the runs that are not kept from an earlier call, and sum all of them up."""
    from platformdirs import user_state_path

    from joulie_lab.apps.experiment.artefacts import ArtefactError, Artefacts, identity
    from joulie_lab.apps.experiment.main import NATIVE, finish
    from joulie_lab.benchmarks import traces as benchmark
    from joulie_lab.simulation.experiment.plan import run_keys
    from joulie_lab.simulation.sweep_state import identity_digest

    place = folder or user_state_path("joulie") / "traces"

    def summed_up(experiment: Experiment, runs: Sequence[RunKey]) -> dict[str, Any]:
        # Named by what makes the runs what they are, so that those of other code lie elsewhere.
        digest = identity_digest(identity(experiment, NATIVE, None))
        artefacts = Artefacts(place / f"{experiment.name}-{digest}")
        finish(experiment, runs, artefacts, jobs=jobs)
        return benchmark.summarise(experiment, [record for record in artefacts.records() if record.key in runs])

    experiments = plan.experiments(seeds)
    try:
        found = {each.name: summed_up(each, benchmark.reported_runs(each)) for each in experiments}
        if not frontier:
            return {"experiments": found}
        bounded = benchmark.bounded(next(each for each in experiments if each.name == plan.frontier))
        return {"experiments": found, "frontier": summed_up(bounded, run_keys(bounded))}
    except ArtefactError as error:
        raise UserError(str(error)) from error


def _measure_equal_work(seeds: tuple[int, ...] | None, executor: Executor, *, small: bool) -> dict[str, Any]:
    from joulie_lab.benchmarks import equal_work as benchmark
    from joulie_lab.program.parallel import played
    from joulie_lab.simulation.sweep import plan

    chosen = benchmark.small_plan() if small else benchmark.full_plan()
    reported = seeds or chosen.seeds
    every = tuple(dict.fromkeys((benchmark.PARITY_SEED, *reported)))
    tasks = plan(chosen.scenario.schedulers, every)
    with closing(played(chosen.scenario, tasks, executor)) as records:
        runs = list(records)
    bounds = {seed: benchmark.bound_of_seed_kwh(chosen.scenario, seed) for seed in every}
    by_task = {(run.scheduler, run.seed): run for run in runs}
    return benchmark.summarise([by_task[task] for task in tasks], bounds, reported)


def _seeds(text: str | None) -> tuple[int, ...] | None:
    return None if text is None else tuple(whole(item, "--seeds") for item in items([text]))
