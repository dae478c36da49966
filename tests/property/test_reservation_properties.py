"""Reserved parts of nodes: whatever pods come, go and overlap, the parts add up to the nodes' time."""

import math
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.ledger import open_ledger
from joulie.domain.accounting.embodied import WHOLE_NODE, Asset, Reservation, Shares, Spread
from joulie.domain.accounting.inventory import Instrument, Inventory, ResidualMix
from joulie.domain.accounting.journal import Month
from joulie.domain.accounting.records import Completion, Cycle, Energy, PodMeta, PowerQuality, Sample, idle_account
from joulie.domain.accounting.sci import MonthRecords, WorkloadKey, report

START_S = Month(2026, 10).starts_s
ASSET = Asset("server", "a test", 1e8, Spread(3e5, 2e5, 9e5), Spread(1e5, 1e5, 2e5), Spread(6e5, 2e5, 8e5))

LIVES = st.lists(
    st.tuples(st.floats(0.0, 2.9), st.floats(0.01, 3.0), st.floats(0.0, 0.2), st.booleans()), min_size=1, max_size=5
)
"""Pods: start and length in days, the share that they reserve, and whether their end is known."""


@settings(max_examples=25, deadline=None)
@given(lives=LIVES, steps=st.lists(st.floats(0.01, 0.9), min_size=2, max_size=8))
def test_reserved_and_unallocated_parts_add_up_to_the_nodes_time(lives, steps):
    with tempfile.TemporaryDirectory() as folder:
        ledger = open_ledger(f"sqlite:///{Path(folder) / 'ledger.db'}")
        before_s, now_s = START_S - 1.0, START_S
        for step in [0.0, *steps]:
            now_s += step * 86400.0
            ledger.append(_cycle(lives, before_s, now_s))
            before_s = now_s
        ledger.prune(now_s + 1e6)
        found = ledger.month(Month(2026, 10))
        assert ledger.verify(lambda *_: True).broken is None
        ledger.close()
    reserved = sum((one.reserved_s for one in found.reserved), Shares())
    for seconds in (reserved.cpu, reserved.memory, reserved.gpu):
        assert math.isclose(seconds, now_s - START_S, rel_tol=1e-9, abs_tol=1e-3)
    assert all(one.reserved_s.cpu > -1e-3 for one in found.reserved)
    told = report(found, Inventory())
    parts = sum((line.embodied.g for line in (*told.workloads.values(), *told.unallocated.values())), 0.0)
    assert math.isclose(parts, told.total.embodied.g, rel_tol=1e-9)
    whole_g = ASSET.charged(WHOLE_NODE * (now_s - START_S)).g
    assert math.isclose(told.total.embodied.g, whole_g, rel_tol=1e-9, abs_tol=1e-3)


def _cycle(lives, before_s, now_s):
    samples, ends = [_sample(idle_account("n1", "n1-uid", "DE", 1.1, 1.15), WHOLE_NODE)], []
    for number, (start, length, share, is_known) in enumerate(lives):
        from_s = START_S + start * 86400.0
        until_s = from_s + length * 86400.0
        pod = PodMeta(f"uid-{number}", "team", f"p{number}", "Job", f"job-{number % 2}", "n1", "DE", from_s)
        if from_s <= now_s < until_s:
            samples.append(_sample(pod, Shares(share, share / 2.0, share)))
        elif before_s < until_s <= now_s and from_s <= before_s:
            ends.append(Completion(pod.uid, until_s if is_known else before_s))
    return Cycle(now_s, samples, ends)


def _sample(pod, shares):
    return Sample(pod, 10.0, 0.0, 0.0, PowerQuality.MODELLED, "cadvisor", Reservation(ASSET, shares))


ENERGIES = st.dictionaries(
    st.tuples(st.sampled_from(["a", "b", "c"]), st.sampled_from(["DE", "FR"])), st.floats(0.0, 1e12), min_size=1
)
MONTH = Month(2026, 10)


@given(
    energies=ENERGIES,
    instruments=st.lists(
        st.tuples(st.sampled_from(["DE", "FR"]), st.floats(0.0, 700.0), st.floats(1.0, 1e6), st.booleans()), max_size=4
    ),
    mixes=st.dictionaries(st.sampled_from(["DE", "FR"]), st.floats(0.0, 900.0)),
)
def test_market_based_parts_add_up_and_cover_no_more_than_was_used(energies, instruments, mixes):
    booked = {
        (WorkloadKey("n", "Job", name), zone): Energy(energy_j=joules) for (name, zone), joules in energies.items()
    }
    given_ = [
        Instrument("contract", zone, MONTH.starts_s, MONTH.ends_s, factor, "x", **_volume(amount, is_share=is_share))
        for zone, factor, amount, is_share in instruments
    ]
    residual = tuple(ResidualMix(zone, 2026, factor, "x") for zone, factor in mixes.items())
    told = report(MonthRecords(MONTH, 0.0, True, booked), Inventory((), {}, residual, tuple(given_)))
    by_zone_g = 0.0
    for mix in told.zones:
        covered_j = sum(joules for _one, joules in mix.covered)
        assert math.isclose(covered_j + mix.rest_j, mix.energy_j, rel_tol=1e-9, abs_tol=1e-6)
        assert mix.rest_j >= 0.0
        by_zone_g += sum(joules * one.g_per_kwh for one, joules in mix.covered) / 3.6e6
        by_zone_g += mix.rest_j * mix.residual.g_per_kwh / 3.6e6 if mix.residual else 0.0
    assert math.isclose(told.total.market_g, by_zone_g, rel_tol=1e-9, abs_tol=1e-6)
    unknown_j = sum(mix.rest_j for mix in told.zones if mix.residual is None)
    assert math.isclose(told.total.energy_without_market_j, unknown_j, rel_tol=1e-9, abs_tol=1e-6)


def _volume(amount, *, is_share):
    return {"share": min(1.0, amount / 1e6)} if is_share else {"kwh": amount}
