"""Which power limit a job gets: what counts as a measurement, what is asked for next, what is chosen and why."""

import math

import numpy as np
import pytest

from joulie.adapters.power_sweeps import PowerSweepError, parse_power_sweeps, read_power_sweeps
from joulie.domain.capping.choice import Goal, Reason, choose_limit, next_limit_w
from joulie.domain.capping.fleet import limit_for_all
from joulie.domain.capping.measurements import Measurement, sweep_of
from joulie.domain.capping.response import learn
from joulie.domain.units import InvalidQuantityError

LIMITS_W = [100.0, 150.0, 200.0, 250.0, 300.0]


def job(natural_w, steepness=1.0, limits_w=LIMITS_W):
    """A sweep: power falls to the limit, and time rises with the square of what is missing."""
    ratio = np.minimum(np.array(limits_w) / natural_w, 1.0)
    time_s = 10.0 * (1.0 + steepness * (1.0 / ratio - 1.0) ** 2)
    return sweep_of(
        Measurement(limit, float(time), float(natural_w * share))
        for limit, time, share in zip(limits_w, time_s, ratio, strict=True)
    )


OTHERS = learn(
    [job(natural_w, steepness) for natural_w in (150.0, 200.0, 250.0, 290.0) for steepness in (0.8, 1.0, 1.2)]
)


def part(sweep, *limits_w):
    """Only these limits of a sweep."""
    places = [list(sweep.limits_w).index(limit) for limit in limits_w]
    return sweep_of(Measurement(sweep.limits_w[i], sweep.time_s[i], sweep.power_w[i]) for i in places)


def test_order_repetition_and_what_is_no_measurement():
    nan = math.nan
    sweep = sweep_of(
        [
            Measurement(200.0, 12.0, 150.0),
            Measurement(300.0, 8.0, 200.0),
            Measurement(100.0, nan, 100.0),
            Measurement(150.0, 20.0, 0.0),
            Measurement(300.0, 12.0, 100.0),
            Measurement(-1.0, 1.0, 1.0),
        ]
    )
    assert sweep.limits_w.tolist() == [300.0, 200.0]
    # Two runs of the same work: 20 s and 2,800 J together.
    assert (sweep.time_s[0], sweep.power_w[0]) == (10.0, 140.0)
    assert sweep.slowdown.tolist() == [1.0, 1.2]
    assert sweep.energy_ratio[1] == pytest.approx(1800.0 / 1400.0)
    assert sweep_of([Measurement(nan, 1.0, 1.0)]) is None
    # Ratios of such figures would not be numbers.
    assert sweep_of([Measurement(300.0, 1e200, 1e200), Measurement(200.0, 1e-200, 1e-200)]) is None


def test_without_the_largest_limit_nothing_is_known_of_slowdowns():
    for measured in (None, part(job(250.0), 200.0, 100.0)):
        choice = choose_limit(measured, LIMITS_W, OTHERS, Goal())
        assert (choice.limit_w, choice.reason, choice.slowdown) == (300.0, Reason.NO_BASELINE, None)
        assert next_limit_w(measured, LIMITS_W, OTHERS, Goal()) == 300.0


def test_of_what_was_measured_the_least_energy_within_the_bound():
    sweep = job(250.0)
    assert np.round(sweep.slowdown, 3).tolist() == [1.0, 1.0, 1.062, 1.444, 3.25]
    assert choose_limit(sweep, LIMITS_W, None, Goal(1.05)).reason is Reason.NOTHING_BETTER
    choice = choose_limit(sweep, LIMITS_W, None, Goal(1.10))
    assert (choice.limit_w, choice.reason) == (200.0, Reason.MEASURED)
    assert (choice.slowdown, choice.energy_ratio) == pytest.approx((1.0625, 0.85))
    # More slowdown than saves energy is not taken, however much is allowed.
    assert choose_limit(sweep, LIMITS_W, None, Goal(9.0)).limit_w == 200.0


def test_an_error_of_measurement_takes_a_margin():
    sweep = job(250.0)
    assert choose_limit(sweep, LIMITS_W, None, Goal(1.07, measurement_error=0.0)).limit_w == 200.0
    assert choose_limit(sweep, LIMITS_W, None, Goal(1.07, measurement_error=0.01)).limit_w == 300.0
    assert choose_limit(sweep, LIMITS_W, None, Goal(1.10, measurement_error=0.01)).limit_w == 200.0


def test_the_baseline_keeps_any_bound_however_it_is_measured():
    goal = Goal(1.0, measurement_error=0.05)
    alone = part(job(250.0), 300.0)
    assert choose_limit(alone, LIMITS_W, OTHERS, goal).limit_w == 300.0
    assert next_limit_w(alone, LIMITS_W, OTHERS, goal) in {*LIMITS_W, None}


def test_a_limit_that_is_not_offered_is_not_chosen():
    choice = choose_limit(job(250.0), [150.0, 250.0], None, Goal(1.10))
    assert (choice.limit_w, choice.reason) == (300.0, Reason.NOTHING_BETTER)


def test_what_other_jobs_do_is_enough_where_they_agree():
    alike = learn([job(natural_w) for natural_w in (240.0, 250.0, 260.0)])
    choice = choose_limit(part(job(250.0), 300.0), LIMITS_W, alike, Goal(1.15, certainty=1.0))
    assert (choice.limit_w, choice.reason) == (200.0, Reason.PREDICTED)
    assert choice.slowdown == pytest.approx(1.0625, abs=0.03)
    # Surer than anybody can be: only what was measured counts.
    assert choose_limit(part(job(250.0), 300.0), LIMITS_W, alike, Goal(1.15, certainty=50.0)).limit_w == 300.0


def test_it_asks_for_the_limit_that_promises_most_and_stops():
    sweep = job(250.0)
    asked = [300.0]
    while (limit := next_limit_w(part(sweep, *asked), LIMITS_W, OTHERS, Goal(1.10))) is not None:
        asked.append(limit)
    assert asked == [300.0, 200.0]
    assert next_limit_w(sweep, LIMITS_W, OTHERS, Goal(1.10, min_gain=0.0)) is None, "all is measured"


def test_a_job_below_every_limit_is_left_alone():
    alone = part(job(60.0), 300.0)
    assert next_limit_w(alone, LIMITS_W, OTHERS, Goal(min_gain=0.005)) is None
    assert next_limit_w(part(job(250.0), 300.0), LIMITS_W, OTHERS, Goal(1.10, min_gain=0.005)) == 200.0


def test_below_what_was_ever_tried_little_is_known():
    lowest = float(OTHERS.slowdown.log_ratio[0])
    none = np.empty(0)
    known, beyond = (OTHERS.slowdown.given(np.array([lowest - step]), none, none) for step in (0.0, 0.5))
    assert beyond.mean[0] == pytest.approx(known.mean[0] + 0.5)
    assert beyond.deviation[0] > known.deviation[0] + 0.2
    energy = OTHERS.energy.given(np.array([lowest, lowest - 0.5]), none, none)
    assert energy.mean[1] == energy.mean[0]


def test_a_measurement_corrects_what_is_expected_near_it():
    at = np.log([0.7, 0.8])
    none = np.empty(0)
    before = OTHERS.slowdown.given(at, none, none)
    after = OTHERS.slowdown.given(at, at[:1], np.array([before.mean[0] + 0.3]))
    assert after.mean[0] > before.mean[0] + 0.2
    assert after.mean[1] > before.mean[1]
    assert (after.deviation < before.deviation).all()


@pytest.mark.parametrize("limits_w", [[], [0.0, 100.0], [math.nan]])
def test_limits_that_are_none(limits_w):
    with pytest.raises(InvalidQuantityError):
        choose_limit(job(250.0), limits_w, None, Goal())


def test_nothing_can_be_learned_of_single_limits():
    with pytest.raises(InvalidQuantityError, match="two limits"):
        learn([part(job(250.0), 300.0)])


def test_one_limit_for_all_keeps_enough_of_them_within_the_bound():
    jobs = [job(natural_w) for natural_w in (120.0, 150.0, 190.0, 250.0)]
    strict = limit_for_all(jobs, Goal(1.05), 1.0)
    # Down to 250 W none of them changes: of equals the largest.
    assert (strict.limit_w, strict.kept, strict.jobs, strict.saving) == (300.0, 4, 4, 0.0)
    most = limit_for_all(jobs, Goal(1.05), 0.75)
    assert (most.limit_w, most.kept) == (200.0, 3)
    assert most.worst_slowdown == pytest.approx(1.0625)
    # A limit that one job was not measured at is not known to be safe for it.
    assert limit_for_all([*jobs, part(job(100.0), 300.0, 250.0)], Goal(1.05), 0.75).limit_w >= 250.0


HEADER = "dataset,network,power_limit,time_per_epoch,average_power"


def test_a_table_of_sweeps_and_its_broken_lines():
    sweeps = parse_power_sweeps(
        [HEADER, "d,n,300,10,200", "d,n,200,nan,150", "d,m,300,5,90", "d,n,200,11,150", "d,n,100", "d,n,x,1,1"]
    )
    assert [(found.name, found.family, len(found.measurements)) for found in sweeps.jobs] == [
        ("d/n", "n", 2),
        ("d/m", "m", 1),
    ]
    assert [problem.split(":")[0] for problem in sweeps.problems] == ["line 3", "line 6", "line 7"]
    assert "power_limit is x, not a number" in sweeps.problems[2]


def test_a_line_of_another_length_than_the_header_is_no_measurement():
    # A decimal comma would move the time into the power, a truncated line lose the job's name.
    sweeps = parse_power_sweeps(
        ["power_limit,time_per_epoch,average_power,job", "300,10,200,a", "300,10,5,200,a", "200,10,200"]
    )
    assert [(found.name, len(found.measurements)) for found in sweeps.jobs] == [("a", 1)]
    assert sweeps.problems == ("line 3: 5 fields, the header has 4", "line 4: 3 fields, the header has 4")


def test_a_table_that_a_spreadsheet_wrote(tmp_path):
    file = tmp_path / "sweep.csv"
    file.write_bytes(b"\xef\xbb\xbfpower_limit,time_per_epoch,average_power\r\n300,10,200\r\n")
    assert [found.name for found in read_power_sweeps(file).jobs] == ["all"]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([], "no column 'power_limit'"),
        (["power_limit,average_power", "1,2"], "no column 'time_per_epoch'"),
        (["power_limit,power_limit,time_per_epoch,average_power", "1,2,3,4"], "column 'power_limit' twice"),
        ([HEADER], "no usable row"),
        ([HEADER, "d,n,300,0,200"], "no usable row; line 2"),
    ],
)
def test_a_table_that_holds_no_sweeps(lines, said):
    with pytest.raises(PowerSweepError, match=said):
        parse_power_sweeps(lines)


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(PowerSweepError, match="No such file"):
        read_power_sweeps(tmp_path / "none.csv")
