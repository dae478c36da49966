"""Public traces in their own formats: what becomes of each line, and which lines are named."""

import gzip
import io
import json
import tarfile
from pathlib import Path

import polars as pl
import pytest
import yaml

from joulie_lab.adapters.job_trace import read_trace, write_trace
from joulie_lab.adapters.trace_import import openb, pai, philly, swf, table
from joulie_lab.adapters.trace_import.source_jobs import DEFAULTS, Assumptions, TraceSourceError, trace_jobs
from joulie_lab.apps.workload.imports import import_
from joulie_lab.simulation.experiment.scenario import Hardware
from joulie_lab.simulation.trace import TraceJob

PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time
pod-a,12000,16384,1,1000,,LS,Running,0,500,100
pod-b,6500,12288,1,460,V100M16|G2,BE,Failed,10,60,20
pod-c,4000,0,0,0,,BE,Pending,20,90,
pod-d,96000,65536,8,1000,,Guaranteed,Succeeded,30,130,30
"""
NODES = """\
sn,cpu_milli,memory_mib,gpu,model
node-0,96000,393216,8,G2
node-1,64000,262144,2,P100
node-2,96000,393216,8,G2
node-3,32000,131072,0,
"""


def written(folder: Path, name: str, text: str | bytes) -> Path:
    file = folder / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    return file


def split(found, path, assumed=DEFAULTS):
    """Jobs, and the rest as texts without the folder."""
    items = list(trace_jobs(found, assumed))
    jobs = [item for item in items if isinstance(item, TraceJob)]
    rest = [
        f"{item.place}: {item.reason}".replace(str(path), "FILE") for item in items if not isinstance(item, TraceJob)
    ]
    return jobs, rest


@pytest.fixture
def pods(tmp_path):
    return written(tmp_path, "pods.csv", PODS)


# openb


def test_openb_pods_keep_what_the_list_says(pods):
    jobs, rest = split(openb.jobs(pods), pods)
    assert rest == []
    whole, shared, never, eight = jobs
    assert (whole.submit_s, whole.shape.cores, whole.shape.memory_gib, whole.shape.gpus) == (0.0, 12.0, 16.0, 1)
    assert (shared.shape.cores, shared.shape.gpus, shared.shape.gpu_share) == (6.5, 1, 0.46)
    assert shared.annotations == {"alibabacloud.com/gpu-milli": "460"}
    assert (never.shape.memory_gib, never.shape.gpus) == (0.0, 0)
    assert "memory" not in never.requests
    assert (eight.shape.gpus, eight.shape.gpu_share, eight.submit_s) == (8, 1.0, 30.0)


def test_openb_runs_from_scheduling_to_deletion_whatever_the_phase(pods):
    jobs, _ = split(openb.jobs(pods), pods)
    work = [(job.cpu_units, job.gpu_units) for job in jobs]
    assert work == [
        (400.0 * 12.0 * 0.3, 400.0 * 0.5),
        (40.0 * 6.5 * 0.3, pytest.approx(40.0 * 0.46 * 0.5)),
        (616.0 * 4.0 * 0.6, 0.0),
        (100.0 * 96.0 * 0.3, 100.0 * 8 * 0.5),
    ]


def test_openb_pods_that_were_never_scheduled_can_be_left_out(pods):
    jobs, rest = split(openb.jobs(pods, openb.OpenbOptions(unscheduled_s=None)), pods)
    assert [job.job_id for job in jobs] == ["pod-a", "pod-b", "pod-d"]
    assert rest == ["FILE:4: never scheduled"]


def test_openb_classes_and_gpu_models(pods):
    jobs, _ = split(openb.jobs(pods), pods)
    assert [job.annotations.get("joulie.io/workload-class") for job in jobs] == [
        "performance",
        None,
        None,
        "performance",
    ]
    jobs, _ = split(openb.jobs(pods, openb.OpenbOptions(performance_qos=("BE",))), pods)
    assert [job.annotations.get("joulie.io/workload-class") for job in jobs] == [
        None,
        "performance",
        "performance",
        None,
    ]
    terms = jobs[1].affinity["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    # G2 is nobody's product: the node's own word for it.
    assert terms == [
        {
            "matchExpressions": [
                {"key": "joulie.io/hw.gpu-model", "operator": "In", "values": ["Tesla-V100-SXM2-16GB", "G2"]}
            ]
        }
    ]


def test_openb_broken_lines_are_named_and_the_others_stay(tmp_path):
    broken = (
        "pod-e,12000,16384,1,1000,,LS,Running,0,5\n"
        "pod-f,many,16384,1,1000,,LS,Running,0,5,1\n"
        "pod-g,12000,16384,1,1000,,LS,Running,0,50,100\n"
        "pod-h,12000,16384,2,500,,LS,Running,0,500,100\n"
        "pod-i,12000,16384,1,0,,LS,Running,0,500,100\n"
        "pod-a,12000,16384,1,1000,,LS,Running,-5,500,100\n"
        "pod-j,0,16384,0,0,,LS,Running,0,500,100\n"
        "pod-b,12000,16384,1,1000,,LS,Running,0,500,100\n"
        "pod-k,inf,16384,1,1000,,LS,Running,0,500,100\n"
        '"pod-l,1000,16384,1,1000,,LS,Running,0,500,100\n'
        "pod-m,1000,16384,1,1000,,LS,Running,0,500,100\n"
    )
    file = written(tmp_path, "pods.csv", PODS.replace("pod-a", "pod-z") + broken)
    jobs, rest = split(openb.jobs(file), file)
    assert [job.job_id for job in jobs] == ["pod-z", "pod-b", "pod-c", "pod-d", "pod-m"]
    assert rest == [
        "FILE:6: has 10 cells, the table has 11 columns",
        "FILE:7: cpu_milli is 'many', which is not a number",
        "FILE:8: it ran for -50 s: the runtime must be above 0",
        "FILE:9: num_gpu is 2 with gpu_milli 500: only one GPU can be shared",
        "FILE:10: gpu_milli is 0, it must be 1..1000",
        "FILE:11: time of submission: must be within [0, inf], got -5",
        "FILE:12: requests neither cores nor GPUs",
        "FILE:13: duplicate job name pod-b",
        "FILE:14: cpu_milli is 'inf', it must be finite",
        "FILE:15: unexpected end of data",
    ]


def test_openb_nodes_become_groups_that_an_experiment_can_have(tmp_path):
    file = written(tmp_path, "nodes.csv", NODES + "node-4,32000,131072,1,X9\nnode-5,0,131072,1,T4\n")
    cluster = openb.cluster(file, "Intel Xeon Gold 6530")
    groups = Hardware(groups=cluster.groups).groups
    assert [(one.name, one.count, one.sockets, one.cores, one.memory_gib, one.gpu, one.gpus) for one in groups] == [
        ("g2x8-96c-384g", 2, 2, 96.0, 384.0, "G2", 8),
        ("p100x2-64c-256g", 1, 1, 64.0, 256.0, "Tesla P100-PCIE-16GB", 2),
        ("cpu-32c-128g", 1, 1, 32.0, 128.0, None, 0),
    ]
    assert [problem.reason for problem in cluster.problems] == [
        "the catalogue has no GPU 'X9'",
        "a node of 0 cores, 128 GiB and 1 GPUs",
    ]
    with pytest.raises(ValueError, match="no CPU 'Z80'"):
        openb.cluster(file, "Z80")


# PAI

TASKS = """\
j2,worker,2.0,Terminated,1100.0,1200.0,600.0,29.0,50.0,T4
j1,ps,1.0,Terminated,1000.0,1300.0,,,,CPU
j2,ps,1.0,Failed,1050.0,1150.0,400.0,16.0,0.0,CPU
j3,worker,1.0,Running,1010.0,,600.0,29.0,100.0,V100
j4,worker,1.0,Waiting,,,600.0,29.0,100.0,V100
j5,tensorflow,1.0,Terminated,1020.0,1020.0,100.0,4.0,250.0,P100
"""


def test_pai_jobs_are_gangs_of_the_instances_of_their_tasks(tmp_path):
    file = written(
        tmp_path,
        "pai_task_table.csv",
        TASKS.replace("j1,ps,1.0,Terminated,1000.0,1300.0,,", "j1,ps,1.0,Terminated,1000.0,1300.0,200.0,"),
    )
    jobs, rest = split(pai.jobs(file), file)
    assert rest == ["FILE:4: not over when the trace was taken", "FILE:5: never started"]
    assert [(job.job_id, job.submit_s, job.gang, job.role) for job in jobs] == [
        ("j1", 0.0, False, "ps"),
        ("j5", 20.0, False, "tensorflow"),
        ("j2-0", 50.0, True, "worker"),
        ("j2-1", 50.0, True, "worker"),
        ("j2-2", 50.0, True, "ps"),
    ]
    assert {job.workload_id for job in jobs[2:]} == {"j2"}
    worker, ps = jobs[2], jobs[4]
    assert (worker.shape.gpus, worker.shape.gpu_share, worker.shape.cores, worker.shape.memory_gib) == (
        1,
        0.5,
        6.0,
        29.0,
    )
    assert ps.shape.gpus == 0
    # All members run from the first start to the last end, for the one waits for the other.
    assert worker.gpu_units == pytest.approx(150.0 * 0.5 * 0.5)
    assert ps.cpu_units == pytest.approx(150.0 * 4.0 * 0.6)
    assert jobs[0].shape.memory_gib == 8.0
    half_a_second = jobs[1]
    assert (half_a_second.shape.gpus, half_a_second.gpu_units) == (3, 0.5 * 3 * 0.5)


def test_pai_tables_come_packed_and_the_job_table_says_when_a_job_was_submitted(tmp_path):
    tasks = "\n".join(line for line in TASKS.splitlines() if line.startswith("j2"))
    archive = tmp_path / "pai_task_table.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        info = tarfile.TarInfo("pai_task_table.csv")
        info.size = len(tasks)
        packed.addfile(info, io.BytesIO(tasks.encode()))
    table_file = written(tmp_path, "jobs.csv.gz", gzip.compress(b"j2,i,u,Terminated,900,1200\nj9,i,u,Waiting,x,\n"))
    jobs, rest = split(pai.jobs(archive, table_file), table_file)
    assert len(jobs) == 3
    assert rest == ["FILE:2: start_time is 'x', which is not a number"]
    jobs, _ = split(pai.jobs(archive), archive)
    assert {job.submit_s for job in jobs} == {0.0}


def test_pai_excerpt_splits_what_is_wider_than_a_node(tmp_path):
    file = written(tmp_path, "pai-100k.csv", "arrival_time,length,cpus\n2.5,0.5,1\n1,2,130\n3,-1,1\n")
    jobs, rest = split(pai.jobs(file), file)
    assert rest == ["FILE:4: it ran for -3600 s: the runtime must be above 0"]
    assert [(job.job_id, job.submit_s, job.shape.cores) for job in jobs] == [
        ("pai-3-0", 3600.0, 44.0),
        ("pai-3-1", 3600.0, 43.0),
        ("pai-3-2", 3600.0, 43.0),
        ("pai-2", 9000.0, 1.0),
    ]
    assert all(job.gang for job in jobs[:3])
    assert sum(job.cpu_units for job in jobs[:3]) == pytest.approx(7200.0 * 130.0 * 0.6)
    assert jobs[0].shape.memory_gib == pytest.approx(44.0 * 4.0)


# Philly


def attempt(start, end, *gpus):
    return {
        "start_time": start and f"2017-10-07 {start}",
        "end_time": end and f"2017-10-07 {end}",
        "detail": [{"ip": f"m{n}", "gpus": [f"gpu{i}" for i in range(count)]} for n, count in enumerate(gpus)],
    }


def philly_job(name, submitted, *attempts):
    return {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": name,
        "attempts": attempts,
        "submitted_time": f"2017-10-07 {submitted}",
        "user": "u",
    }


def test_philly_jobs_are_gangs_over_servers_and_run_for_all_their_attempts(tmp_path):
    log = [
        philly_job(
            "application_15_2", "02:00:00", attempt("02:10:00", "02:11:00", 8), attempt("02:20:00", "02:30:00", 8, 4)
        ),
        philly_job("application_15_1", "01:00:00", attempt("01:00:00", "01:01:00", 1)),
        philly_job("application_15_3", "03:00:00"),
        philly_job("application_15_4", "03:00:00", attempt("03:00:00", None, 1)),
        philly_job("application_15_5", "03:00:00", attempt("03:00:00", "02:00:00", 1)),
        {"jobid": 7},
        philly_job("application_15_6", "13 o'clock", attempt("03:00:00", "04:00:00", 1)),
    ]
    file = written(tmp_path, "cluster_job_log", json.dumps(log))
    jobs, rest = split(philly.jobs(file), file)
    assert [(job.job_id, job.submit_s, job.shape.gpus, job.gang) for job in jobs] == [
        ("application-15-1", 0.0, 1, False),
        ("application-15-2-0", 3600.0, 8, True),
        ("application-15-2-1", 3600.0, 4, True),
    ]
    assert jobs[1].gpu_units == pytest.approx(660.0 * 8 * 0.5)
    assert jobs[1].shape.cores == 48.0
    assert jobs[1].workload_type == "vc-ee9e8c"
    assert rest[:3] == [
        "FILE: job 3: no attempt to run it is recorded",
        "FILE: job 4: an attempt has no start or no end",
        "FILE: job 5: application_15_5: an attempt ends at 2017-10-07 02:00:00, before its start",
    ]
    assert rest[3].startswith("FILE: job 6: Expected `str`, got `int`")
    assert rest[4].startswith("FILE: job 7: time data")


@pytest.mark.parametrize("log", ["[{", "[" * 100_000])
def test_philly_refuses_what_is_no_log(tmp_path, log):
    with pytest.raises(TraceSourceError, match="invalid cluster_job_log"):
        list(philly.jobs(written(tmp_path, "log", log)))


def test_philly_jobs_of_less_than_its_clock_tells_ran_all_the_same(tmp_path):
    log = [philly_job("application_1", "01:00:00", attempt("01:00:00", "01:00:00", 1))]
    jobs, rest = split(philly.jobs(written(tmp_path, "cluster_job_log", json.dumps(log))), tmp_path)
    assert ([job.ideal_s for job in jobs], rest) == ([0.5], [])


# SWF

SWF = """\
; Version: 2.2
; Computer: Test SP2
; MaxProcs: 128
;
 1   0  5  100   4  80 1024  4  200 2048 1 1 1 -1 2 -1 -1 -1
 2  10 -1    0 130  -1   -1 -1   -1   -1 0 1 1 -1 -1 -1 -1 -1
 3  20 -1   -1   4  -1   -1  4   -1   -1 5 1 1 -1 2 -1 -1 -1
 4  30  1   50  -1  99   -1  2   -1   -1 5 1 1 -1 2 -1 -1 -1
 5  40  1   -1   2  -1   -1  2   -1   -1 1 1 1 -1 2 -1 -1 -1
 5  40  1   50   2  -1   -1  2   -1   -1 2 1 1 -1 2 -1 -1 -1
 6  50  1   50  -1  -1   -1 -1   -1   -1 1 1 1 -1 2 -1 -1 -1
 7  60  1   50   1
 8  70  1  -50   1  -1   -1  1   -1   -1 1 1 1 -1 2 -1 -1 -1
"""


@pytest.mark.parametrize("name", ["log.swf", "log.swf.gz"])
def test_swf_takes_what_a_log_knows_and_assumes_the_rest(tmp_path, name):
    file = written(tmp_path, name, gzip.compress(SWF.encode()) if name.endswith("gz") else SWF)
    assert swf.header(file) == {"Version": "2.2", "Computer": "Test SP2", "MaxProcs": "128"}
    jobs, rest = split(swf.jobs(file), file, Assumptions(widest_pod_cores=65))
    known, left, right, cancelled = jobs
    assert (known.job_id, known.shape.cores, known.workload_type, known.gang) == ("job-1", 4.0, "queue-2", False)
    assert known.shape.memory_gib == pytest.approx(4 * 2048 / 1024**2, abs=1e-3)
    assert known.profile.cpu_utilization == 0.8
    assert known.cpu_units == pytest.approx(100.0 * 4 * 0.8)
    assert (left.shape.cores, right.shape.cores, left.gang, left.workload_id) == (65.0, 65.0, True, "job-2")
    assert left.cpu_units == pytest.approx(0.5 * 65 * 0.6)
    assert (cancelled.shape.cores, cancelled.profile.cpu_utilization) == (2.0, 1.0)
    assert rest == [
        "FILE:7: cancelled before it ran",
        "FILE:9: run time unknown",
        "FILE:10: part of a job that has a line of its own",
        "FILE:11: has no number of processors",
        "FILE:12: has 5 fields, but the format has 18",
        "FILE:13: it ran for -50 s: the runtime must be above 0",
    ]


# Tables

MAPPING = (
    "id=name,arrival=at:iso,duration=len:min,cores=cpu:milli,memory=mem:MiB,"
    "gpus=gpu:milli,class=prio,cpu_util=use:percent"
)
TABLE = """\
name,at,len,cpu,mem,gpu,prio,use
Second Job!,2024-05-01T02:00:00+01:00,2,1500,512,250,high,50
first,2024-05-01 00:30:00,1,2000,1024,0,low,
third,yesterday,1,2000,1024,0,low,
fourth,2024-05-01 00:30:00,1,2000,1024,0,low,150
"""


def test_a_table_is_read_by_its_mapping(tmp_path):
    file = written(tmp_path, "jobs.csv", TABLE)
    options = table.TableOptions(table.column_mapping(MAPPING), performance_classes=("high",))
    jobs, rest = split(table.jobs(file, options), file)
    assert rest[0] == "FILE:4: at is 'yesterday', which is not a date like 2024-05-01T12:00:00"
    assert rest[1].startswith("FILE:5: cpu_utilization: must be within [0, 1], got 1.5")
    first, second = jobs
    assert (first.job_id, first.submit_s, first.shape.cores, first.annotations) == ("first", 0.0, 2.0, {})
    assert first.cpu_units == 60.0 * 2.0 * 0.6
    assert (second.job_id, second.submit_s) == ("second-job", 1800.0)
    assert (second.shape.gpus, second.shape.gpu_share, second.shape.memory_gib) == (1, 0.25, 0.5)
    assert second.profile.cpu_utilization == 0.5
    assert second.annotations["joulie.io/workload-class"] == "performance"


def test_parquet_reads_as_csv_does(tmp_path):
    columns = table.column_mapping("arrival=t:h,start=from,end=to,cores=c,pods=n,gpu_model=m")
    rows = {"t": [2.0, 1.0], "from": [10.0, 20.0], "to": [40.0, None], "c": [3.0, 1.0], "n": [2, 1], "m": [None, "A10"]}
    frame = pl.DataFrame(rows)
    frame.write_parquet(tmp_path / "jobs.parquet")
    frame.write_csv(tmp_path / "jobs.csv")
    found = {}
    for file in (tmp_path / "jobs.parquet", tmp_path / "jobs.csv"):
        jobs, rest = split(table.jobs(file, table.TableOptions(columns)), file)
        found[file.suffix] = [(job.submit_s, job.cpu_units, job.gang) for job in jobs]
        assert len(rest) == 1
        assert rest[0].endswith(": to is missing")
    assert found[".parquet"] == found[".csv"] == [(7200.0, 30.0 * 3.0 * 0.6, True)] * 2


@pytest.mark.parametrize(
    ("mapping", "problem"),
    [
        ("arrival", "invalid mapping 'arrival': use FIELD=COLUMN"),
        ("when=t", "unknown field 'when'; use one of id, arrival"),
        ("arrival=t:weeks,duration=d,cores=c", "unknown unit 'weeks' of arrival; use one of s, ms"),
        ("arrival=t,arrival=u", "duplicate field arrival"),
        ("duration=d,cores=c", "needs arrival=COLUMN"),
        ("arrival=t,end=e,cores=c", "needs duration=COLUMN, or start=COLUMN and end=COLUMN"),
        ("arrival=t,duration=d", "needs cores=COLUMN or gpus=COLUMN"),
    ],
)
def test_a_mapping_that_cannot_be_is_refused(mapping, problem):
    with pytest.raises(ValueError, match=problem.replace("(", r"\(")):
        table.column_mapping(mapping)


def test_names_stay_unique_and_mistaken_sizes_stay_small(tmp_path):
    rows = ("a,2,1", "a-1,1,1", "a-01,1,1", "a-2,1,1", "b-0,1,1", "b,2,1", "A,1,1", "c,1e9,1", "d,1,1e9", "-,1,1")
    file = written(tmp_path, "jobs.csv", "id,pods,cores,t\n" + "".join(f"{row},1\n" for row in rows))
    columns = table.column_mapping("id=id,pods=pods,cores=cores,arrival=t,duration=t")
    jobs, rest = split(table.jobs(file, table.TableOptions(columns)), file)
    assert [job.job_id for job in jobs] == ["a-0", "a-1", "a-01", "a-2", "b-0", "job"]
    assert rest == [
        "FILE:3: duplicate job name a-1",
        "FILE:7: duplicate job name b",
        "FILE:8: duplicate job name a",
        "FILE:9: 1,000,000,000 pods are more than the maximum of 100,000",
        "FILE:10: 15,625,000 pods are more than the maximum of 100,000",
    ]


def test_rows_that_no_trace_can_hold_are_problems_and_tiny_shares_are_kept(tmp_path):
    rows = ("a,1,1,0.0001", "b,1e300,1,1", "c,1,1e300,1", "d,1,1,1e30", "e,1,1e12,1", "x..Y\u00fc-,1,1,0.5")
    file = written(tmp_path, "jobs.csv", "id,cores,t,gpus,at\n" + "".join(f"{row},0\n" for row in rows))
    columns = table.column_mapping("id=id,cores=cores,arrival=at,duration=t,gpus=gpus")
    jobs, rest = split(table.jobs(file, table.TableOptions(columns)), file)
    assert [(one.job_id, one.shape.gpu_share, one.ideal_s) for one in jobs] == [
        ("a", 0.001, pytest.approx(1.0)),
        ("x-y", 0.5, pytest.approx(1.0)),
    ]
    assert [one.partition(": ")[0] for one in rest] == ["FILE:3", "FILE:4", "FILE:5", "FILE:6"]
    assert write_trace(tmp_path / "t.jsonl", jobs) == 2
    assert list(read_trace(tmp_path / "t.jsonl")) == jobs


# Files and the command


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("none.csv", None, "cannot be read: No such file"),
        ("empty.csv", b"", "is empty"),
        ("other.csv", b"a,b\n1,2\n", "no column 'name'; its columns are a, b"),
        ("cut.csv.gz", gzip.compress(PODS.encode() * 50, mtime=0)[:-20], "is damaged"),
        ("plain.csv.gz", PODS.encode(), "cannot be read: Not a gzipped file"),
        ("none.tar.gz", gzip.compress(b"\0" * 10240, mtime=0), "has no file"),
        ("no.parquet", b"no parquet", "cannot be read"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, problem):
    file = tmp_path / name if content is None else written(tmp_path, name, content)
    with pytest.raises(TraceSourceError, match=problem) as caught:
        list(openb.jobs(file))
    assert str(caught.value).startswith(str(file))


def command(capsys, *arguments):
    """Exit status, standard output and error of the command."""
    with pytest.raises(SystemExit) as left:
        import_([str(argument) for argument in arguments], prog_name="import")
    streams = capsys.readouterr()
    return left.value.code, streams.out, streams.err


def test_the_command_writes_trace_and_cluster_and_says_what_it_assumed(tmp_path, pods, capsys):
    nodes = written(tmp_path, "nodes.csv", NODES)
    trace, cluster = tmp_path / "trace.jsonl.gz", tmp_path / "cluster.yaml"
    options = ("--nodes", nodes, "--cluster-out", cluster, "--gpu-utilization", "0.9", "--leave-out-unscheduled")
    code, out, err = command(capsys, "openb", pods, "--out", trace, "-o", "json", *options)
    assert code == 0, err
    summary = json.loads(out)
    assert (summary["pods"], summary["gpus"], summary["gpuSharingPods"], summary["performancePods"]) == (3, 10, 1, 2)
    assert summary["leftOut"] == {"never scheduled": 1}
    assert len(Hardware.model_validate_json(json.dumps(yaml.safe_load(cluster.read_text()))).groups) == 3
    with gzip.open(trace) as lines:
        about = json.loads(next(lines))
    assert about["type"] == "workload"
    assert about["source"] == "openb"
    assert about["assumed"]["gpu_utilization"] == 0.9
    found = openb.jobs(pods, openb.OpenbOptions(unscheduled_s=None))
    assert list(read_trace(trace)) == split(found, pods, Assumptions(gpu_utilization=0.9))[0]


def test_classes_are_words_between_commas(tmp_path, pods, capsys):
    for classes, performance in ((" LS, BE", 3), ("", 0)):
        trace = tmp_path / "trace.jsonl"
        code, out, _ = command(capsys, "openb", pods, "--out", trace, "-o", "json", "--performance-qos", classes)
        assert (code, json.loads(out)["performancePods"]) == (0, performance)


def test_broken_lines_stop_the_command_unless_they_are_to_be_skipped(tmp_path, capsys):
    pods = written(tmp_path, "pods.csv", PODS + "pod-e\n" * 25)
    trace = tmp_path / "trace.jsonl"
    code, _, err = command(capsys, "openb", pods, "--out", trace)
    assert code == 1
    assert err.count(f"{pods}:") == 20
    assert "and 5 more broken lines" in err
    assert "25 broken lines, nothing is written" in err
    assert not trace.exists()
    code, out, _ = command(capsys, "openb", pods, "--out", trace, "--skip-bad-lines")
    assert code == 0
    assert any(line.split() == ["brokenLines", "25"] for line in out.splitlines())
    assert len(list(read_trace(trace))) == 4


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("openb", "none.csv", "--out", "x"), "cannot be read"),
        (("openb", "none.csv", "--out", "x", "--nodes", "n"), "--nodes and --cluster-out belong together"),
        (("csv", "none.csv", "--out", "x", "--columns", "a"), "--columns: invalid mapping 'a': use FIELD=COLUMN"),
        (("swf", "none.swf", "--out", "x"), "cannot be read"),
        (("philly", "none", "--out", "x"), "cannot be read"),
        (("pai", "none", "--out", "x", "--cpu-utilization", "0"), "--cpu-utilization"),
    ],
)
def test_mistakes_of_the_user_have_status_2(tmp_path, capsys, monkeypatch, arguments, problem):
    monkeypatch.chdir(tmp_path)
    code, _, err = command(capsys, *arguments)
    assert code == 2
    assert problem in err
    assert not list(tmp_path.iterdir())
