"""The state file of a sweep: what survives an interruption, and what is refused."""

import pytest

from joulie_lab.simulation.results import RunRecord
from joulie_lab.simulation.scenario_files import load_scenario
from joulie_lab.simulation.sweep import Task
from joulie_lab.simulation.sweep_state import SweepState, SweepStateError, code_digest, identity, identity_digest

FIELDS = RunRecord.__dataclass_fields__


def record(seed, mean_kw=0.1 + 0.2):
    return RunRecord(**dict.fromkeys(FIELDS, 1.0) | {"scheduler": "joulie", "seed": seed, "mean_kw": mean_kw})


def sweep(*sets, version="1", code="c"):
    return identity(load_scenario("quick", sets), version=version, code=code)


def state(path, this=None, **options):
    return SweepState(path, this or sweep(), **options)


def test_finished_runs_come_back_to_the_last_bit(tmp_path):
    first = state(tmp_path / "folder" / "s.jsonl")
    first.add(record(1))
    first.add(record(2, mean_kw=1.0 / 3.0))
    again = state(tmp_path / "folder" / "s.jsonl")
    assert again.records == {Task("joulie", 1): record(1), Task("joulie", 2): record(2, mean_kw=1.0 / 3.0)}


def test_a_run_is_in_the_file_at_once(tmp_path):
    open_state = state(tmp_path / "s.jsonl")
    open_state.add(record(1))
    assert state(tmp_path / "s.jsonl").records == {Task("joulie", 1): record(1)}


def test_a_half_written_line_is_forgotten_and_the_next_run_stands_on_its_own_line(tmp_path):
    path = tmp_path / "s.jsonl"
    first = state(path)
    first.add(record(1))
    first.add(record(2))
    path.write_bytes(path.read_bytes()[:-9])
    resumed = state(path)
    assert list(resumed.records) == [Task("joulie", 1)]
    resumed.add(record(3))
    assert list(state(path).records) == [Task("joulie", 1), Task("joulie", 3)]


@pytest.mark.parametrize("length", [0, 16, 40])
def test_a_half_written_first_line_begins_anew(tmp_path, length):
    path = tmp_path / "s.jsonl"
    state(path)
    whole = path.read_bytes()
    path.write_bytes(whole[:length])
    state(path)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("this", "names"),
    [
        (lambda: sweep("hours=6"), "hours: 12.0 in the file, 6.0 now"),
        (lambda: sweep("workload.published.rate=0.2"), "workload"),
        (lambda: sweep(version="2"), 'version: "1" in the file, "2" now'),
        (lambda: sweep(code="d"), "code"),
    ],
)
def test_runs_of_another_sweep_are_refused(tmp_path, this, names):
    path = tmp_path / "s.jsonl"
    state(path).add(record(1))
    with pytest.raises(SweepStateError, match="another sweep") as caught:
        state(path, this())
    assert names in str(caught.value)
    assert "--fresh" in str(caught.value)
    state(path, this(), fresh=True)
    assert state(path, this()).records == {}


def test_schedulers_and_seeds_may_differ():
    assert sweep("schedulers=[t10, t15]", "seeds=[7, 8]") == sweep()


def test_files_of_a_scenario_count_by_content(tmp_path):
    jobs = tmp_path / "jobs.csv"
    sets = (
        "workload={csv: %s, columns: {arrival: a, duration: d}, defaults: {cores: 1}}" % jobs,  # noqa: UP031
    )
    jobs.write_text("a,d\n0,60\n")
    before = identity_digest(sweep(*sets))
    jobs.write_text("a,d\n0,61\n")
    assert identity_digest(sweep(*sets)) != before
    jobs.unlink()
    with pytest.raises(SweepStateError, match=r"jobs\.csv"):
        sweep(*sets)


@pytest.mark.parametrize("content", [b"a report\n", b"a report", b"[1]\n", b'{"joulie_sweep": 99}\n'])
@pytest.mark.parametrize("fresh", [False, True])
def test_a_file_that_is_no_state_is_left_alone(tmp_path, content, fresh):
    path = tmp_path / "report.txt"
    path.write_bytes(content)
    with pytest.raises(SweepStateError, match="not the state"):
        state(path, fresh=fresh)
    assert path.read_bytes() == content


@pytest.mark.parametrize("line", [b"{half\n", b"[]\n", b'{"seed": 1}\n'])
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "s.jsonl"
    state(path).add(record(1))
    path.write_bytes(path.read_bytes() + line)
    with pytest.raises(SweepStateError, match=r"s\.jsonl:3"):
        state(path)


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SweepStateError, match="cannot be used"):
        state(tmp_path / "file" / "s.jsonl")


def test_the_digest_of_the_code_is_stable():
    assert code_digest() == code_digest()


def test_the_digest_covers_both_distributions():
    digests = [code_digest([*packages]) for packages in ((), ("joulie.domain",), ("joulie_lab.simulation",))]
    assert len({*digests, code_digest()}) == 4


def test_a_package_that_is_gone_is_no_digest():
    with pytest.raises(FileNotFoundError, match=r"package joulie_lab\.domain is not at"):
        code_digest(["joulie_lab.domain"])
