"""Job tables: what is read, and what is refused by line and value."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from joulie_lab.adapters.job_table import read_job_table
from joulie_lab.simulation.jobs import ColumnRef, JobTableError, JobTableSpec

CSV = "t,len,cpus,gpu,kind\n0.5,2,4,0,a\n0.25,1,8,2,b\n1,3,1,0,a\n"
COLUMNS = {
    "arrival": ColumnRef("t", 3600.0),
    "duration": ColumnRef("len", 3600.0),
    "cores": ColumnRef("cpus"),
    "gpus": ColumnRef("gpu"),
    "class": ColumnRef("kind"),
}
DEFAULTS = {"cpu_util": 0.5, "gpu_util": 0.6, "gpus": 0}


def spec(path: Path, **columns: ColumnRef) -> JobTableSpec:
    suffix = "parquet" if path.suffix == ".parquet" else "csv"
    return JobTableSpec(path, suffix, {**COLUMNS, **columns}, DEFAULTS)


@pytest.fixture
def table(tmp_path: Path):
    def _table(text: str) -> Path:
        file = tmp_path / "jobs.csv"
        file.write_text(text, encoding="utf-8")
        return file

    return _table


def refusal(path: Path, **columns: ColumnRef) -> str:
    with pytest.raises(JobTableError) as caught:
        read_job_table(spec(path, **columns))
    return str(caught.value).replace(str(path), "FILE")


def test_reads_in_file_order_and_si(table):
    jobs = read_job_table(spec(table(CSV)))
    np.testing.assert_array_equal(jobs.arrival_s, [1800.0, 900.0, 3600.0])
    np.testing.assert_array_equal(jobs.duration_s, [7200.0, 3600.0, 10800.0])
    np.testing.assert_array_equal(jobs.cores, [4, 8, 1])
    np.testing.assert_array_equal(jobs.gpus, [0, 2, 0])
    np.testing.assert_array_equal(jobs.gpu_util, [0.6, 0.6, 0.6])
    np.testing.assert_array_equal(jobs.line, [2, 3, 4])
    np.testing.assert_array_equal(jobs.job_class, [0, 1, 0])
    assert jobs.class_names == ("a", "b")
    assert jobs.place.endswith("jobs.csv:")


def test_parquet_reads_the_same(table, tmp_path):
    source = table(CSV)
    binary = tmp_path / "jobs.parquet"
    pl.read_csv(source).write_parquet(binary)
    from_csv, from_parquet = read_job_table(spec(source)), read_job_table(spec(binary))
    for name in ("arrival_s", "duration_s", "cores", "gpus", "cpu_util", "job_class"):
        np.testing.assert_array_equal(getattr(from_csv, name), getattr(from_parquet, name))
    np.testing.assert_array_equal(from_parquet.line, [1, 2, 3])


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("0.25,1", "0.25,nan", "FILE:3: len: 'nan', duration must be a number above 0; correct the table"),
        ("0.25,1", "0.25,inf", "FILE:3: len: 'inf', duration must be a number above 0; correct the table"),
        ("0.25,1", "0.25,", "FILE:3: len: missing, duration must be a number above 0; correct the table"),
        ("0.25,1", "0.25,0", "FILE:3: len: '0', duration must be a number above 0; correct the table"),
        ("0.25,1", "-0.25,1", "FILE:3: t: '-0.25', arrival must be a number of at least 0; correct the table"),
        ("0.25,1", "soon,1", "FILE:3: t: 'soon', arrival must be a number of at least 0; correct the table"),
        (",8,", ",8.5,", "FILE:3: cpus: '8.5', cores must be a whole number of 1..32767; correct the table"),
        (",8,", ",99999,", "FILE:3: cpus: '99999', cores must be a whole number of 1..32767; correct the table"),
        ("0.25,1,8,2,b\n", "\n", "FILE:3: t: missing, arrival must be a number of at least 0; correct the table"),
        ("2,b", "2,", "FILE:3: kind: missing, class must be a name; correct the table"),
        ("len", "length", "FILE: no column 'len' (needed for duration); its columns are t, length, cpus, gpu, kind"),
    ],
)
def test_bad_cells_are_named(table, old, new, expected):
    assert refusal(table(CSV.replace(old, new))) == expected


def test_nan_in_parquet(tmp_path):
    file = tmp_path / "jobs.parquet"
    pl.read_csv(CSV.encode()).with_columns(len=pl.Series([1.0, 2.0, float("nan")])).write_parquet(file)
    assert refusal(file) == "FILE: row 3: len: 'nan', duration must be a number above 0; correct the table"


def test_utilisation_out_of_range(table):
    percent = CSV.replace(",8,", ",800,")
    assert refusal(table(percent), cpu_util=ColumnRef("cpus", 0.01)) == (
        "FILE:3: cpus: '800', cpu_util must be a fraction of 0..1; correct the table"
    )


def test_empty_missing_and_broken_files(table, tmp_path):
    assert refusal(table("t,len,cpus,gpu,kind\n")).startswith("FILE: no jobs in it")
    assert refusal(table("")).startswith("FILE: not a readable csv file")
    assert refusal(tmp_path / "none.csv").startswith("FILE: no such file; set workload.csv")
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"PAR1 and nothing more")
    assert refusal(broken).startswith("FILE: not a readable parquet file")


def test_a_column_that_holds_no_numbers(tmp_path):
    file = tmp_path / "jobs.parquet"
    pl.read_csv(CSV.encode()).with_columns(len=pl.lit(True)).write_parquet(file)
    assert refusal(file) == "FILE: column 'len' is Boolean, but duration must be numeric"


def test_neither_column_nor_default(table):
    columns = {name: ref for name, ref in COLUMNS.items() if name != "cores"}
    with pytest.raises(JobTableError, match="cores has neither a column nor a default"):
        read_job_table(JobTableSpec(table(CSV), "csv", columns, DEFAULTS))
    with pytest.raises(JobTableError, match="default cores is 0"):
        read_job_table(JobTableSpec(table(CSV), "csv", columns, {**DEFAULTS, "cores": 0}))
