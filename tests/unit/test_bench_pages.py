"""Committed results of the benchmarks, and the pages of the documentation that are made of them."""

import json
import re
from importlib import import_module
from pathlib import Path

import pytest
from scipy import stats

from joulie.apps.cli.main import main
from joulie_lab.apps.bench.attribution import AttributionResult
from joulie_lab.apps.bench.binding import BindingResult
from joulie_lab.apps.bench.extender import ExtenderResult
from joulie_lab.apps.bench.owners import sentences
from joulie_lab.apps.bench.profiles import ProfilesResult
from joulie_lab.apps.bench.registry import PAGES, module_of
from joulie_lab.apps.bench.report import Table
from joulie_lab.benchmarks.owners import ClusterFigures, OwnersResult, VariantFigures
from joulie_lab.benchmarks.ranges import load_ranges, misses
from joulie_lab.benchmarks.results import Estimate, estimate, of_values, plain, spread

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
SAVING = re.compile(r"\bsav(es?|ed|ings?)\b[^\n]*%|%[^\n]*\bsav(es?|ed|ings?)\b|less (IT )?energy")
RANGED = {path.stem for path in (ROOT / "benchmarks").glob("*.yaml")}
GAIN = re.compile(
    r"(saved_pct|saving_pct|share|allocation_pct|power_pct|oracle_pct|points|per_work|static_pct|bound_pct|lost_pct)\b.*\.mean$"
)
"""Metrics of what is gained or lost, over seeds."""
WITHOUT_SAVING = {"machines", "power-estimate", "published", "real-node", "scheduling-rate", "sleep"}
"""Pages that compare nothing by its energy."""
KINDS = {
    "attribution": AttributionResult,
    "binding": BindingResult,
    "extender": ExtenderResult,
    "profiles": ProfilesResult,
    **{name: import_module(module_of(name)).PAGE.result for name in PAGES},
}


def joulie(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([*map(str, arguments)])
    return caught.value.code


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_a_committed_result_is_read_and_written_without_a_change(path):
    report = json.loads(path.read_text(encoding="utf-8"))
    written = json.loads(json.dumps(plain(of_values(report, KINDS[path.stem]))))
    assert report.get("missed", []) == []
    assert written == {key: value for key, value in report.items() if key not in ("benchmark", "small", "missed")}


@pytest.mark.parametrize("name", ["backtest", "deferral", "place"])
def test_a_share_that_is_a_standard_error_off_misses_its_range(name):
    report = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    ranges = load_ranges(ROOT / "benchmarks" / f"{name}.yaml", small=False)
    assert misses(ranges, report) == []
    shares = [
        entry for entry in ranges if entry.metric.endswith((".rules.joulie.share", "_24h.rules.joulie.share.mean"))
    ]
    shares += [entry for entry in ranges if entry.metric.endswith(".both.share.mean")]
    assert shares
    for entry in shares:
        for errors in (-1.05, 1.05):
            changed = json.loads(json.dumps(report))
            shift_share(changed, entry.metric.split("."), errors)
            assert entry.missed_by(changed), (entry.metric, errors)


@pytest.mark.parametrize("name", sorted(path.stem for path in RESULTS.glob("*.json") if path.stem in RANGED))
def test_a_gain_that_is_a_standard_error_off_misses_a_range(name):
    report = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    ranges = load_ranges(ROOT / "benchmarks" / f"{name}.yaml", small=False)
    for metric in {entry.metric for entry in ranges if GAIN.search(entry.metric)}:
        *place, last = metric.split(".")
        for share in (-0.55, 0.55):
            changed = json.loads(json.dumps(report))
            figures = changed
            for part in place:
                figures = figures[part]
            # Half of a 95 % interval is at least 1.96 standard errors.
            figures[last] += share * (figures["half_width"] or 1.0)
            own = [entry for entry in ranges if entry.metric == metric]
            assert misses(own, report) == []
            assert figures["half_width"] == 0.0 or misses(own, changed), (metric, share)


def shift_share(report, path, errors):
    """Move a share by so many of its standard errors: over weeks, or over seeds."""
    *place, last = path
    figures = report
    for part in place:
        figures = figures[part]
    if last == "mean":
        error = figures["half_width"] / stats.t.ppf(0.975, len(report["seeds"]) - 1)
    else:
        low, high = figures["interval"]
        error = (high - low) / (2.0 * stats.norm.ppf(0.975))
    figures[last] += errors * error


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_committed_result_says(name, capsys, monkeypatch):
    monkeypatch.chdir(ROOT)
    assert joulie("bench", "page", name, "--check") == 0, capsys.readouterr().err


@pytest.mark.parametrize("path", sorted((ROOT / "docs/experiments").glob("*.md")), ids=lambda path: path.stem)
def test_a_page_that_shows_a_saving_says_who_knew_what_and_what_jobs_pay(path):
    text = path.read_text(encoding="utf-8")
    if path.stem in WITHOUT_SAVING:
        assert not SAVING.search(text)
        return
    assert re.search(r"^(## |(- )?\*\*)Who knew what", text, re.MULTILINE)
    assert re.search(r"slow|work lost|longer", text)


def test_the_readme_tells_what_owners_get_as_it_was_measured():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    told = " ".join(readme[readme.index("- **What you get") : readme.index("- **A scheduler can save")].split())
    result = of_values(json.loads((RESULTS / "owners.json").read_text(encoding="utf-8")), OwnersResult)
    clusters, policies = result.clusters, result.causes["hetero-41, jobs free"].variants
    eco = " ".join(readme[readme.index("- **Fixed eco caps") : readme.index("- **Waiting for clean")].split())
    assert {policies[name].claim for name in ("halves", "queue")} == {"no effect shown"}
    assert f"{policies['halves'].saved_pct.text(1)} % and {policies['queue'].saved_pct.text(1)} % of the energy" in eco
    placement, caps = policies["energy"].saved_by_placement_pct, policies["energy"].saved_by_caps_pct
    assert placement is not None
    assert caps is not None
    assert f"saves {policies['energy'].saved_pct.text(1)} %" in eco
    assert f"{placement.mean:.1f} points are placement, {caps.mean:.1f} are caps" in eco
    default = {name: cluster.variants["default"] for name, cluster in clusters.items()}
    assert {one.claim for one in default.values()} == {"saves"}
    for name, one in default.items():
        assert f"{one.saved_pct.text(1)} %" in told, name
    for name in ("all-h100", "all-a100", "h100-41"):
        assert f"{default[name].busy_saved_pct.text(1)} %" in told, name
    slowest = max((one.p95_standard for one in default.values()), key=lambda found: found.mean)
    assert f"at most {slowest.text(3)} times as long" in told
    assert f"{clusters['cpu-only-40'].variants['packed'].saved_pct.text(1)} % there" in told


def test_the_readme_tells_the_other_results_as_they_were_measured():
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    limits, equal_work, openb, deferral = (
        of_values(json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")), KINDS[name])
        for name in ("limits", "equal-work", "openb", "deferral")
    )
    exact, noisy = (
        [100.0 * getattr(found, noise).share.mean for found in limits.gpus.values()] for noise in ("exact", "noisy")
    )
    assert f"saves {min(exact):.0f} to {max(exact):.0f} % of what the best limit" in readme
    assert f"with 2 % noise in each window, {min(noisy):.0f} to {max(noisy):.0f} %" in readme
    oracle = [found.oracle_pct for found in limits.gpus.values()]
    assert f"({min(oracle):.0f} to {max(oracle):.0f} % of a job's energy)" in readme
    ours = equal_work.reported["marginal-energy-ramp"]
    published = -equal_work.reported["joulie"].saving_pct["most-allocated"].mean
    assert f"it uses {published:.1f} % *more* than bin packing" in readme
    saved, above = ours.saving_pct["most-allocated"].mean, ours.above_bound_pct.mean
    assert f"uses {saved:.1f} % less, {above:.1f} % above ideal packing" in readme
    assert f"at {openb.cases['reported']['joulie-frugal'].power_pct.mean:.1f} % of its power" in readme
    shares = [100.0 * zone.windows["4h_24h"].rules["joulie"].share.mean for zone in deferral.zones.values()]
    assert f"{min(shares):.0f} to {max(shares):.0f} % of what a perfect forecast would save" in readme


def estimated(mean, half_width=0.1):
    return Estimate(mean, half_width)


def owned(saved_pct, work_pct=0.0):
    """Figures of a cluster whose default saves so much."""
    one = VariantFigures(
        estimated(saved_pct), None, estimated(0.0), estimated(1.04), None, None, estimated(0.0), work_pct
    )
    return ClusterFigures("a cluster", 12.0, (1, 2), "kube", None, estimated(0.5), {"default": one})


def test_each_kind_of_owner_gets_a_sentence_with_its_verdict():
    clusters = {"all-h100": owned(2.0), "all-a100": owned(-2.0), "h100-41": owned(3.0), "hetero-41": owned(0.1)}
    found = list(sentences(OwnersResult(0.15, 0.5, clusters | {"cpu-only-40": owned(9.0, work_pct=2.0)})))
    assert [text.split("**")[1].split(",")[0] for text in found] == ["Identical GPUs"] * 2 + ["Mixed GPUs", "CPUs only"]
    saves, costs, nothing, other = found
    assert "Joulie saves, of the energy of all nodes, 2.0 ±0.1 % on all-h100 and 3.0 ±0.1 % on h100-41" in saves
    assert "Joulie costs energy" in costs
    assert "-2.0 ±0.1 % on all-a100" in costs
    assert "no effect is shown" in nothing
    assert "nothing can be said" in other


def test_fidelity_pairs_seeds_and_shows_families_and_correlations_within_them():
    report = json.loads((RESULTS / "fidelity.json").read_text(encoding="utf-8"))
    for name, saved in (("A", 0.0), ("D", 0.10)):
        (run, *_) = report["runs"][name].values()
        families = [{"what": "one", "native": 2.0, "other": 3.0, "difference_pct": 50.0}]
        report["runs"][name] = {
            str(seed): run
            | {
                "energy_pct": pct,
                "native_kwh": 100.0 * (1.0 - saved),
                "plane_kwh": (100.0 + pct) * (1.0 - saved - 0.01 * seed * bool(saved)),
                "families": families,
                "node_correlation_in_family": 0.25,
            }
            for seed, pct in ((1, 0.0), (2, 1.0), (3, 2.0))
        }
    result = of_values(report | {"runs": {name: report["runs"][name] for name in ("A", "D")}}, KINDS["fidelity"])
    page = import_module(module_of("fidelity")).PAGE.values(result)
    assert "| D | 3 | +1.00 ±2.48 | +10.00 ±0.00 | +12.00 ±2.48 | +2.00 ±2.48 |" in str(page["paired"])
    assert "| one | 2.00 | +50.0 ±0.0 | 2.00 | +50.0 ±0.0 |" in str(page["families"])
    assert str(page["nodes"]).count("| 0.25 |") == 6
    assert page["seeds"] == "seeds 1, 2, 3"


def test_a_page_that_differs_is_named_and_can_be_written(tmp_path, capsys, monkeypatch):
    for path in ("benchmarks/results/native.json", "docs/concepts/native-runtime.md"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text((ROOT / path).read_text(encoding="utf-8"), encoding="utf-8")
    page = tmp_path / "docs/concepts/native-runtime.md"
    right = page.read_text(encoding="utf-8")
    page.write_text(right.replace("| kube, once |", "| kube, twice |"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert joulie("bench", "page", "native", "--check") == 1
    assert "concepts/native-runtime.md differs: run `joulie bench page native`" in capsys.readouterr().err
    assert joulie("bench", "page", "native") == 0
    assert page.read_text(encoding="utf-8") == right


def test_a_page_that_does_not_exist_yet_is_written(tmp_path, capsys, monkeypatch):
    for path in ("benchmarks/results/sleep.json", "benchmarks/pages/sleep.md"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).write_text((ROOT / path).read_text(encoding="utf-8"), encoding="utf-8")
    page = Path(import_module(module_of("sleep")).PAGE.path)
    monkeypatch.chdir(tmp_path)
    assert joulie("bench", "page", "sleep", "--check") == 1
    assert f"{page} differs" in capsys.readouterr().err
    assert joulie("bench", "page", "sleep") == 0
    assert (tmp_path / "docs" / page).read_text(encoding="utf-8") == (ROOT / "docs" / page).read_text(encoding="utf-8")


def test_a_page_without_a_template_and_without_its_block_is_not_made_up(tmp_path, capsys, monkeypatch):
    path = "benchmarks/results/backtest.json"
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text((ROOT / path).read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert joulie("bench", "page", "backtest") == 2
    told = capsys.readouterr().err
    assert f"must have the lines '<!-- from {path} -->' and '<!-- end -->'" in told


def test_pages_are_written_in_a_checkout_only(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert joulie("bench", "page") == 2
    assert "run this command in a checkout" in capsys.readouterr().err


def test_a_result_with_a_figure_that_nobody_knows_is_refused():
    report = json.loads((RESULTS / "native.json").read_text(encoding="utf-8"))
    with pytest.raises(ValueError, match="unknown field `surprise`"):
        of_values(report | {"surprise": 1.0}, KINDS["native"])


def test_numbers_of_a_table_are_aligned_at_the_right():
    assert str(Table("", ("gpu", "way", "saved"), [("A40", "all", "1.0")], labels=2)) == (
        "| gpu | way | saved |\n| --- | --- | ---: |\n| A40 | all | 1.0 |"
    )


def test_a_spread_has_the_interval_of_an_estimate_and_the_largest_value():
    found, same = spread([1.0, 2.0, 6.0]), estimate([1.0, 2.0, 6.0])
    assert (found.mean, found.half_width, found.worst) == (same.mean, same.half_width, 6.0)
    assert spread([3.0]).half_width == 0.0
