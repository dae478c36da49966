"""The benchmarks as pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from joulie_lab.simulation.report.charts import PALETTE


def parity_growth(measured: Mapping[str, Any]) -> bytes:
    """What a job costs as the cluster grows, and a run as its jobs grow: a PNG image."""
    figure, (by_nodes, by_jobs) = _figure(2)
    nodes, jobs = measured["growth_with_nodes"], measured["growth_with_jobs"]
    for name, color in zip(_schedulers(nodes), PALETTE, strict=False):
        own = [row for row in nodes if row["scheduler"] == name]
        sizes = [row["nodes"] for row in own]
        by_nodes.plot(sizes, [row["us_per_job"] for row in own], "o-", color=color, label=name)
        by_nodes.plot(sizes, [row["plain_us_per_job"] for row in own], "s:", color=color, label=f"{name}, plain NumPy")
        own = [row for row in jobs if row["scheduler"] == name]
        by_jobs.plot(
            [row["jobs"] / 1000.0 for row in own], [row["seconds"] for row in own], "o-", color=color, label=name
        )
    by_nodes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="µs a job")
    node_counts = sorted({row["nodes"] for row in nodes})
    by_nodes.set_xticks(node_counts, [f"{count:,}" for count in node_counts])
    by_nodes.xaxis.set_minor_locator(NullLocator())
    by_nodes.yaxis.set_major_formatter("{x:,g}")
    _title(by_nodes, "Cost of a job, same workload")
    by_jobs.set(xlabel="thousand jobs", ylabel="s a run")
    by_jobs.set_xlim(left=0.0)
    by_jobs.set_ylim(bottom=0.0)
    _title(by_jobs, "Cost of a run, same cluster")
    by_nodes.legend(frameon=False, fontsize="small")
    by_jobs.legend(frameon=False, fontsize="small")
    return _png(figure)


def equal_work(measured: Mapping[str, Any]) -> bytes:
    """Energy above the lower bound, ramp and wait of every scheduler, with confidence intervals: a PNG image."""
    figure, (energy, ramp, wait) = _figure(3)
    reported = measured["reported"]
    names = sorted(reported, key=lambda name: -reported[name]["above_bound_pct"]["mean"])
    colors = [PALETTE[2] if name.startswith("marginal-energy") else PALETTE[0] for name in names]
    for axes, metric, label, digits in (
        (energy, "above_bound_pct", "Energy above the lower bound, %", 2),
        (ramp, "p99_ramp_kw", "P99 ramp, kW/min", 1),
        (wait, "mean_wait_min", "Mean wait, min", 3),
    ):
        means = [reported[name][metric]["mean"] for name in names]
        half_widths = [reported[name][metric]["half_width"] or 0.0 for name in names]
        axes.barh(range(len(names)), means, xerr=half_widths, color=colors, error_kw={"elinewidth": 1.2, "capsize": 3})
        for row, (mean, half_width) in enumerate(zip(means, half_widths, strict=True)):
            axes.annotate(
                f"{mean:.{digits}f}",
                (mean + half_width, row),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize="small",
            )
        axes.margins(x=0.18)
        axes.set_xlim(left=0.0)
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        axes.set_yticks(range(len(names)), names if axes is energy else [""] * len(names))
        _title(axes, label)
    n_seeds = len(measured["seeds"])
    figure.supxlabel(f"Mean of {n_seeds} seeds; whiskers: 95 % confidence interval", fontsize="small")
    return _png(figure)


def attribution(measured: Mapping[str, Any]) -> bytes:
    """How far off the power of pods is, by rule, on a logarithmic scale: a PNG image."""
    figure, (cpu, gpu) = _figure(2)
    _errors(cpu, {name.replace("_", " "): rule for name, rule in measured["cpu"]["rules"].items()})
    _title(cpu, "CPU: mean error of a pod's power, %")
    # Pods with whole GPUs are told exactly: there is no error to draw.
    shared = {sharing: tally["rules"] for sharing, tally in measured["gpu"].items() if sharing != "whole"}
    _errors(
        gpu,
        {
            f"{sharing}, {name.replace('_', ' ')}": rule
            for sharing, rules in shared.items()
            for name, rule in rules.items()
        },
    )
    _title(gpu, "Shared GPUs: mean error of a pod's power, %")
    return _png(figure)


def _errors(axes: Axes, rules: Mapping[str, Mapping[str, float]]) -> None:
    errors = [rule["error_pct"] for rule in rules.values()]
    colors = [PALETTE[2] if "joulie" in name else PALETTE[0] for name in rules]
    axes.barh(range(len(errors)), errors, color=colors)
    for row, error in enumerate(errors):
        axes.annotate(
            f"{error:,.1f}", (error, row), xytext=(4, 0), textcoords="offset points", va="center", fontsize="small"
        )
    axes.set(xscale="log", xlim=(1.0, 10_000.0))
    axes.xaxis.set_major_formatter("{x:,g}")
    axes.set_yticks(range(len(errors)), list(rules))
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")
    axes.tick_params(axis="y", length=0)


def power_estimate(measured: Mapping[str, Any]) -> bytes:
    """Coverage of vendors and years that were left out, and the intervals of one server: a PNG image."""
    figure, (coverage, example) = _figure(2)
    held_out = measured["held_out"]
    rows = [(basis, load) for basis, loads in held_out["groups"].items() for load in loads]
    splits = {"vendor": ("o", "a vendor left out"), "year": ("s", "a year"), "later_year": ("^", "all later years")}
    for way, color, shift in (("plain", PALETTE[1], -0.14), ("groups", PALETTE[2], 0.14)):
        for name, (marker, label) in splits.items():
            covered = [100.0 * held_out[way][basis][load][name]["covered"] for basis, load in rows]
            places = [row + shift for row in range(len(rows))]
            coverage.plot(covered, places, marker, color=color, label=f"{way}: {label}")
    coverage.axvline(100.0 * measured["coverage"], color="black", linewidth=1.0)
    coverage.set_yticks(range(len(rows)), [f"by {basis}, {load}" for basis, load in rows])
    coverage.invert_yaxis()
    coverage.grid(visible=False, axis="y")
    _title(coverage, "Servers within the interval, %")
    coverage.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=2)
    _intervals(example, measured["example"])
    return _png(figure)


def _intervals(axes: Axes, example: Mapping[str, Any]) -> None:
    load_pct = [100.0 * load for load in example["loads"]]
    for (basis, range_w), color in zip(reversed(example["ranges_w"].items()), PALETTE, strict=False):
        axes.fill_between(load_pct, range_w["low"], range_w["high"], color=color, alpha=0.18, linewidth=0.0)
        axes.plot(load_pct, range_w["expected"], color=color, label=f"by {basis}")
    axes.plot(load_pct, example["measured_w"], "o", color="black", label="measured")
    axes.set(xlabel="CPU utilisation, %", ylabel="power at the plug, W", xlim=(0.0, 100.0))
    axes.set_ylim(bottom=0.0)
    _title(axes, example["name"])
    axes.legend(frameon=False, fontsize="small", loc="upper left")


def profiles(measured: Mapping[str, Any]) -> bytes:
    """What wrong levels cost by rules and by trees, on workloads as learned and on others: a PNG image."""
    worlds = measured["worlds"]
    figure, all_axes = _figure(len(worlds))
    for axes, (world, groups) in zip(all_axes, worlds.items(), strict=True):
        targets = groups["all"]
        contenders = [name for name in next(iter(targets.values())) if name != "gain"]
        height = 0.8 / len(contenders)
        for place, (contender, color) in enumerate(zip(contenders, PALETTE, strict=False)):
            costs = [figures[contender]["cost"] for figures in targets.values()]
            axes.barh(
                [row + place * height for row in range(len(targets))],
                [cost["mean"] for cost in costs],
                height,
                xerr=[cost["half_width"] or 0.0 for cost in costs],
                color=color,
                label=contender.replace("_", " "),
                error_kw={"elinewidth": 1.0},
            )
        axes.set_yticks(
            [row + 0.4 - height / 2.0 for row in range(len(targets))],
            [target.replace("-", " ") for target in targets] if axes is all_axes[0] else [""] * len(targets),
        )
        axes.invert_yaxis()
        axes.grid(visible=False, axis="y")
        axes.tick_params(axis="y", length=0)
        _title(axes, f"Cost of wrong levels, {world} workloads")
    all_axes[0].legend(frameon=False, fontsize="small")
    return _png(figure)


def deferral(measured: Mapping[str, Any]) -> bytes:
    """Share of the oracle's saving by rule, and errors against the best simple forecast: a PNG image."""
    figure, (savings, errors) = _figure(2)
    zones = measured["zones"]
    case = "4h_24h"
    rules = next(iter(zones.values()))["windows"][case]["rules"]
    height = 0.85 / len(rules)
    for place, (rule, color) in enumerate(zip(rules, PALETTE, strict=False)):
        shares = [100.0 * zone["windows"][case]["rules"][rule]["share"]["mean"] for zone in zones.values()]
        savings.barh([row + place * height for row in range(len(zones))], shares, height, color=color, label=rule)
    savings.set_yticks([row + 0.4 - height / 2.0 for row in range(len(zones))], list(zones))
    savings.invert_yaxis()
    savings.set_xlim(0.0, 100.0)
    savings.grid(visible=False, axis="y")
    savings.tick_params(axis="y", length=0)
    _title(savings, "Saved of what the oracle saves, %: 4 h, may wait 24 h")
    savings.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=3)
    for (name, zone), color in zip(zones.items(), PALETTE, strict=False):
        leads_h = [int(lead.removesuffix("h")) for lead in zone["errors"]]
        relative = [100.0 * found["relative"] for found in zone["errors"].values()]
        errors.plot(leads_h, relative, "o-", color=color, label=name)
    errors.axhline(100.0, color="black", linewidth=1.0)
    errors.set(xlabel="hours ahead", ylim=(0.0, 105.0))
    _title(errors, "Error of Joulie's forecast, % of the best simple one's")
    errors.legend(frameon=False, fontsize="small", loc="lower right")
    return _png(figure)


def capping(measured: Mapping[str, Any]) -> bytes:
    """What few measurements save, what an oversubscribed breaker costs standard work, and one storm: a PNG image."""
    figure, (choice, feed, storm) = _figure(3)
    for (gpu, found), color in zip(measured["gpus"].items(), PALETTE, strict=False):
        for source, style in (("other_networks", "o-"), ("other_gpu", "s:")):
            by_budget = found["choice"][source]
            shares = [100.0 * figures["share"] for figures in by_budget.values()]
            choice.plot([int(budget) for budget in by_budget], shares, style, color=color, label=f"{gpu}: {source}")
    choice.axhline(90.0, color="black", linewidth=1.0)
    choice.set(xlabel="limits measured beside the largest", ylim=(0.0, 105.0))
    choice.xaxis.set_major_locator(MaxNLocator(integer=True))
    choice.legend([text.replace("_", " ") for text in choice.get_legend_handles_labels()[1]], frameon=False)
    _title(choice, "Saved of what the oracle saves, %")
    cases = measured["feed"]["cases"]
    schemes = [name for name in next(iter(cases.values())) if name != "no_limits"]
    example = measured["feed"]["example"]
    colors = dict(zip(dict.fromkeys([*schemes, *example["load"]]), PALETTE, strict=False))
    height = 0.85 / len(schemes)
    for place, scheme in enumerate(schemes):
        lost = [case[scheme]["standard_lost_pct"]["mean"] for case in cases.values()]
        places = [row + place * height for row in range(len(cases))]
        feed.barh(places, lost, height, color=colors[scheme], label=scheme.replace("_", " "))
        for row, (case, width) in zip(places, zip(cases.values(), lost, strict=True), strict=True):
            feed.annotate(
                _broken(case[scheme]), (width, row), xytext=(3, 0), textcoords="offset points", va="center", fontsize=6
            )
    feed.set_yticks([row + 0.4 - height / 2.0 for row in range(len(cases))], [name.replace("_", " ") for name in cases])
    feed.invert_yaxis()
    feed.margins(x=0.5)
    feed.grid(visible=False, axis="y")
    feed.tick_params(axis="y", length=0)
    feed.legend(frameon=False, fontsize="small", loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=3)
    _title(feed, "Standard work lost, %")
    for scheme, loads in example["load"].items():
        minutes = [index * example["every_s"] / 60.0 for index in range(len(loads))]
        storm.plot(minutes, loads, color=colors[scheme], linewidth=1.2, label=scheme.replace("_", " "))
    storm.axhline(1.0, color="black", linewidth=1.0)
    storm.set(xlabel="minutes", ylim=(0.0, 1.4))
    storm.legend(frameon=False, fontsize="small", loc="lower left")
    _title(storm, "Load of the breaker in a storm")
    return _png(figure)


def _broken(figures: Mapping[str, Any]) -> str:
    """What else is wrong with a scheme: trips, and critical servers that it slows."""
    found = []
    if figures["trips"]["mean"]:
        found.append(f"{figures['trips']['mean']:.1f} trips")
    if figures["critical_slowed_pct"]["mean"]:
        found.append(f"critical slowed {figures['critical_slowed_pct']['mean']:.0f} %")
    return ", ".join(found)


def openb(measured: Mapping[str, Any]) -> bytes:
    """GPU given as more is asked for, power against FGD's, and what weights of power give: a PNG image."""
    figure, (given, power, frontier) = _figure(3)
    curves = measured["curves"]
    colors = {name: f"C{index}" for index, name in enumerate(curves)}
    base_kw = curves["FGD"]["power_kw"]
    for name, curve in curves.items():
        style = "-" if name.startswith("joulie") else "--"
        arrived = curve["arrived_pct"]
        given.plot(arrived, curve["allocation_pct"], style, color=colors[name], linewidth=1.4, label=name)
        relative = [100.0 * kw / fgd for kw, fgd in zip(curve["power_kw"], base_kw, strict=True)]
        power.plot(arrived[10:101], relative[10:101], style, color=colors[name], linewidth=1.4)
    given.set(xlabel="GPU arrived, % of the cluster's", xlim=(80.0, 130.0), ylim=(78.0, 97.0))
    given.legend(frameon=False, fontsize="small", loc="lower right")
    _title(given, "GPU allocated, %")
    power.set(xlabel="GPU arrived, % of the cluster's")
    _title(power, "Power, % of FGD's")
    for (name, points), marker, color in zip(measured["frontier"].items(), "so", PALETTE, strict=False):
        xs, ys = ([point[key] for point in points] for key in ("power_pct", "allocation_pct"))
        frontier.plot(xs, ys, marker, color=color, label=f"{name}, weights of power")
    reported = measured["cases"]["reported"]
    for name in ("FGD", "BestFit", "joulie-packed"):
        figures = reported[name]
        at = (figures["power_pct"]["mean"], figures["allocation_pct"]["mean"])
        frontier.plot(*at, "^", color=colors[name])
        frontier.annotate(name, at, xytext=(-5, -10), textcoords="offset points", ha="right", fontsize="small")
    frontier.margins(0.12)
    frontier.set(xlabel="power at 20 to 80 % arrived, % of FGD's")
    frontier.legend(frameon=False, fontsize="small", loc="lower right")
    _title(frontier, "GPU allocated, %, by power")
    return _png(figure)


def _schedulers(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["scheduler"] for row in rows))


def _figure(n_axes: int) -> tuple[Figure, list[Axes]]:
    figure = Figure(figsize=(11.0, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(1, n_axes, index + 1) for index in range(n_axes)]
    for one in axes:
        one.grid(alpha=0.3)
        one.set_axisbelow(True)
        one.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _title(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontweight="bold", fontsize="medium")


def _png(figure: Figure) -> bytes:
    out = BytesIO()
    figure.savefig(out, format="png")
    return out.getvalue()
