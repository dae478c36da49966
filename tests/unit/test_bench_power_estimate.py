"""The benchmark of power estimates: how its data is cleaned, what it leaves out, and what is committed of it."""

import json
from pathlib import Path

import numpy as np
import pytest

from joulie.apps.cli.main import main
from joulie.domain.power_estimate import CALIBRATION, SHAPES, Basis, End
from joulie_lab.adapters.published.errors import PublishedDataError
from joulie_lab.adapters.published.specpower import (
    PUBLISHED_CURVES,
    TDP_W,
    System,
    enough,
    read_systems,
    synthetic_table,
)
from joulie_lab.benchmarks import power_estimate as benchmark
from joulie_lab.benchmarks.ranges import load_ranges

ROOT = Path(__file__).parents[2]
ROW = {
    "Hardware Vendor": "Dell Inc.",
    "CPU Description": "AMD EPYC 9654",
    "Chips": "2",
    "# Cores": "192",
    "# Cores Per Chip": "96",
    "Total Threads": "384",
    "Total Memory (GB)": "384",
    "Power Supply Details": "PSU 1",
    "Published": "Dec-2022",
    "Result": "30064.0",
    "avg. watts @ 100%": "817.0",
    "avg. watts @ active idle": "128.0",
}


def table(*rows):
    """Lines of a table whose rows differ from `ROW` as told."""
    full = [ROW | row for row in rows]
    return [",".join(ROW), *(",".join(f'"{row[column]}"' for column in ROW) for row in full)]


def test_a_row_is_a_server():
    systems = read_systems(table({}))
    (system,) = systems.kept
    assert system == System("Dell", 2022, "epyc 9654", 2, 192, 384, 384.0, 128.0, 817.0, 30064.0)
    assert system.tdp_w == 720.0
    assert (systems.rows, systems.left_out, systems.corrected) == (1, {}, {})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"avg. watts @ 100%": ""}, "unreadable"),
        ({"Published": "soon"}, "unreadable"),
        ({"avg. watts @ active idle": "nan"}, "impossible power or size"),
        ({"avg. watts @ active idle": "0"}, "impossible power or size"),
        ({"avg. watts @ active idle": "900"}, "impossible power or size"),
        ({"avg. watts @ 100%": "inf"}, "impossible power or size"),
        ({"Published": "Dec-2014"}, "published before 2015"),
        ({"Power Supply Details": "Shared"}, "several nodes in one enclosure"),
        ({"Power Supply Details": " "}, "several nodes in one enclosure"),
        ({"Chips": "10", "# Cores": "960"}, "several nodes in one enclosure"),
        ({"# Cores Per Chip": "192"}, "cores are not chips x cores per chip"),
        ({"Published": "Jan-2023", "Hardware Vendor": "Another"}, "published twice"),
    ],
)
def test_a_row_that_is_no_server_is_left_out_and_counted(change, reason):
    systems = read_systems(table({}, change))
    assert (len(systems.kept), systems.rows, systems.left_out) == (1, 2, {reason: 1})


def test_trap_terabytes_in_the_column_of_gigabytes():
    systems = read_systems(table({"Total Memory (GB)": "1.0"}))
    assert systems.kept[0].memory_gib == 1024.0
    assert systems.corrected == {"memory in terabytes": 1}


@pytest.mark.parametrize(
    ("spelling", "vendor"),
    [
        ("SuperMicro, Inc.", "Supermicro"),
        ("Super Micro Computer, Inc.", "Supermicro"),
        ("Hewlett-Packard Company", "HPE"),
        ("Fsas Technologies Inc.", "Fujitsu"),
        ("Tyan Computer Corp.", "Tyan Computer Corp."),
    ],
)
def test_trap_one_house_under_many_names_is_left_out_as_one(spelling, vendor):
    assert read_systems(table({"Hardware Vendor": spelling})).kept[0].vendor == vendor


@pytest.mark.parametrize(
    ("text", "cpu"),
    [
        ("Intel(R) Xeon(R) Platinum 8592+,", "platinum 8592+"),
        ("AMD EPYC 9965 192-Core Processor", "epyc 9965"),
        ("Intel Xeon Platinum 8380 CPU", "platinum 8380"),
    ],
)
def test_one_cpu_has_one_name(text, cpu):
    assert read_systems(table({"CPU Description": text.replace('"', "")})).kept[0].cpu == cpu
    assert cpu in TDP_W


@pytest.mark.parametrize("lines", [[], ["a,b", "1,2"]])
def test_a_file_that_is_no_copy_of_the_table_is_told(lines):
    with pytest.raises(PublishedDataError, match="no column 'Hardware Vendor'"):
        read_systems(lines)


def test_too_few_servers_cannot_be_left_out():
    with pytest.raises(PublishedDataError, match="1 usable servers of 1 vendors"):
        enough(read_systems(table({})))


@pytest.fixture(scope="module")
def made_up():
    return benchmark.Servers.of(read_systems(synthetic_table(seed=3)).kept)


@pytest.mark.parametrize("name", benchmark.SPLITS)
@pytest.mark.parametrize("basis", Basis)
def test_trap_nothing_of_what_is_left_out_is_calibrated_on(made_up, name, basis):
    observed = benchmark.observations(made_up, basis, "full")
    for split in benchmark.SPLITS[name](made_up):

        def calibrate(seen, split=split):
            assert not np.any(split.tested[seen.server] | split.tested[seen.lender])
            if name in {"vendor", "vendor_halves"}:
                vendors = {*made_up.vendor[seen.server], *made_up.vendor[seen.lender]}
                assert not vendors & set(made_up.vendor[split.tested])
            if name == "year":
                years = {*made_up.year[seen.server], *made_up.year[seen.lender]}
                assert not years & set(made_up.year[split.tested])
            if name == "later_year":
                assert max(made_up.year[seen.server].max(), made_up.year[seen.lender].max()) < int(split.name)
            return End(1.0, 1.0, 0.5, 2.0)

        assert 0.0 <= benchmark._coverage(observed, calibrate, iter([split])).covered <= 1.0


def test_trap_a_server_does_not_lend_itself_its_curve_nor_does_its_vendor(made_up):
    pairs = benchmark.observations(made_up, Basis.CURVE, "idle")
    assert np.all(made_up.vendor[pairs.server] != made_up.vendor[pairs.lender])


def test_plain_ends_hold_ninety_percent_of_what_is_drawn_alike():
    draw = np.random.default_rng(5)
    end = End(1.0, 1.0, *benchmark.WAYS["plain"](None, None, np.exp(draw.normal(size=999))))
    fresh = np.exp(draw.normal(size=100_000))
    assert np.mean((fresh >= end.low) & (fresh <= end.high)) == pytest.approx(0.9, abs=0.03)


def test_too_few_servers_to_calibrate_on_make_no_narrow_interval():
    assert benchmark.WAYS["plain"](None, None, np.array([0.9, 1.0, 1.1])) == (0.0, np.inf)


def test_a_vendor_of_its_own_kind_widens_the_ends(made_up):
    observed = benchmark.observations(made_up, Basis.TDP, "full")
    ratio = np.where(made_up.vendor[observed.server] == 0, 2.0, 1.0)
    assert benchmark.WAYS["groups"](made_up, observed, ratio) == pytest.approx(
        (1 / benchmark.MARGIN, 2 * benchmark.MARGIN)
    )


def test_coverage_counts_what_lies_within_and_how_much_was_missing(made_up):
    observed = benchmark.observations(made_up, Basis.TDP, "full")
    flat = benchmark.Observations(observed.size, observed.size.copy(), observed.server, observed.lender)
    flat.power_w[made_up.year[flat.server] == 2020] *= 3.0
    figures = benchmark._coverage(flat, lambda _: End(1.0, 1.0, 0.5, 2.0), benchmark.SPLITS["year"](made_up))
    n_2020 = int(np.sum(made_up.year[flat.server] == 2020))
    assert figures.covered == pytest.approx(1.0 - n_2020 / len(flat.size))
    assert (figures.worst, figures.worst_is, figures.worst_observations) == (0.0, "2020", n_2020)
    assert figures.factor_for_each == pytest.approx(1.5)


def test_the_ranges_hold_the_numbers_that_are_in_the_product():
    equal = {entry.metric: entry.equals for entry in load_ranges(ROOT / "benchmarks/power-estimate.yaml", small=False)}
    for basis, ends in CALIBRATION.items():
        for load, end in ends._asdict().items():
            for name, number in end._asdict().items():
                if number != 1.0:
                    assert equal[f"calibrated.{basis.value}.{load}.{name}"] == number


def test_the_shapes_in_the_product_are_those_of_the_whole_curves():
    for shipped, shape in zip(SHAPES, benchmark.shapes(benchmark.whole_curves()), strict=True):
        np.testing.assert_allclose(shipped, shape, atol=0.0051)
    assert all(len(curve.curve_w) == 11 and curve.cpu in TDP_W for curve in PUBLISHED_CURVES)


def joulie(*arguments):
    with pytest.raises(SystemExit) as caught:
        main([*map(str, arguments)])
    return caught.value.code


def test_without_the_data_it_says_where_to_get_it(capsys):
    assert joulie("bench", "power-estimate") == 2
    error = capsys.readouterr().err
    assert "--data FILE" in error
    assert "github.com/cloud-carbon-footprint/ccf-coefficients" in error


@pytest.mark.parametrize("content", [None, b"a,b\n1,2\n", b"\xff\xfe\x00", "\n".join(table({})).encode()])
def test_a_file_that_cannot_be_used_is_one_line_and_status_2(tmp_path, capsys, content):
    path = tmp_path / "table.csv"
    if content is not None:
        path.write_bytes(content)
    assert joulie("bench", "power-estimate", "--data", path) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.slow
def test_the_small_sample_holds_its_ranges(tmp_path, capsys):
    ranges = ROOT / "benchmarks" / "power-estimate.yaml"
    status = joulie(
        "bench", "power-estimate", "--small", "--ranges", ranges, "--json", tmp_path / "j", "--plots", tmp_path
    )
    captured = capsys.readouterr()
    assert (status, captured.err.count("missed")) == (0, 0), captured.err
    assert "Servers within the interval" in captured.out
    document = json.loads((tmp_path / "j").read_text())
    assert (document["benchmark"], document["small"], document["missed"]) == ("power-estimate", True, [])
    assert (tmp_path / "power-estimate.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_a_table_of_ones_own_is_measured(tmp_path, capsys):
    path = tmp_path / "table.csv"
    path.write_text("\n".join(synthetic_table(seed=2)), encoding="utf-8")
    ranges = tmp_path / "r.yaml"
    ranges.write_text("full: [{metric: data.used, min: 100, why: enough}]\nsmall: []\n", encoding="utf-8")
    assert joulie("bench", "power-estimate", "--data", path, "--ranges", ranges, "-o", "json") == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert data["rows"] == data["used"] + sum(data["left_out"].values())
