"""Deaths change nothing in the ledger, and corrections exactly what they should, in whatever order they come."""

import contextlib
import math
import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.ledger import LedgerSettings, open_ledger
from joulie.adapters.signing import Ed25519Signer, verify_signature
from joulie.domain.accounting.factors import FactorKind
from joulie.domain.accounting.journal import Reason
from joulie.domain.accounting.records import Completion, Cycle, Grouping, PodMeta
from support import ledger_site
from support.ledger_contract import HOUR_S, T0, DiedError, contents, dies_at, sample, steady

_events = st.lists(
    st.tuples(
        st.integers(1, 1800),  # time since the last cycle, s
        st.lists(st.integers(0, 5), max_size=6, unique=True),  # pods that are sampled
        st.floats(0, 500),
        st.lists(st.integers(0, 5), max_size=2, unique=True),  # pods that end
        st.booleans(),  # signals are known
        st.none() | st.integers(0, 25),  # dies before this statement; 25: after the last one
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=20)
@given(events=_events)
def test_dying_anywhere_any_number_of_times_changes_nothing(tmp_path_factory, events):
    folder = tmp_path_factory.mktemp("ledgers")
    keep = LedgerSettings(max_samples_per_pod=6, hours_kept_s=HOUR_S, retention_s=600, max_gap_s=900)
    calm, shaken = (open_ledger(f"sqlite:///{folder / name}", keep) for name in ("calm", "shaken"))
    time_s = T0
    for wait_s, running, power_w, ending, known, dies in events:
        time_s += wait_s
        metas = [PodMeta(str(one), "ns", "name", zone="DE", started_s=T0 + 10 * one) for one in running]
        samples = [sample(meta, power_w + index, 1.5) for index, meta in enumerate(metas)]
        ends = [Completion(str(one), time_s - 3.5) for one in ending]
        cycle = Cycle(time_s, samples, ends, steady() if known else {})
        calm.append(cycle)
        if dies is not None:
            dies_at(shaken, dies)
            with contextlib.suppress(DiedError):
                shaken.append(cycle)
            shaken.close()
            shaken = open_ledger(f"sqlite:///{folder / 'shaken'}", keep)
        shaken.append(cycle)
        calm.prune(time_s)
        shaken.prune(time_s)
    assert contents(shaken) == contents(calm)
    calm.close()
    shaken.close()


_KINDS = st.sampled_from([FactorKind.INTENSITY, FactorKind.PRICE, FactorKind.PUE, FactorKind.GPU_PUE])
_steps = st.lists(
    st.one_of(
        st.tuples(st.just("correct"), _KINDS, st.integers(0, 40), st.integers(1, 30), st.floats(1.0, 900.0)),
        st.just(("backfill",)),
        st.just(("close",)),
        st.tuples(st.just("prune"), st.integers(0, 4)),
    ),
    max_size=8,
)


@pytest.fixture(scope="module")
def booked(tmp_path_factory):
    """A ledger with all cycles of a site; every example begins with a copy."""
    file = tmp_path_factory.mktemp("booked") / "ledger"
    ledger, site = open_ledger(f"sqlite:///{file}"), ledger_site.Site(cycle_s=HOUR_S)
    for index in range(len(site.times_s)):
        ledger.append(site.cycle(index))
    ledger.close()
    return file


@settings(max_examples=15)
@given(steps=_steps)
def test_in_any_order_the_sum_of_entries_is_what_an_independent_calculation_gives(booked, tmp_path_factory, steps):
    folder = tmp_path_factory.mktemp("ledgers")
    shutil.copy(booked, folder / "ledger")
    signer = Ed25519Signer(ledger_site.new_key(folder / "key.pem"))
    site = ledger_site.Site(cycle_s=HOUR_S)
    ledger = open_ledger(f"sqlite:///{folder / 'ledger'}", LedgerSettings(hours_kept_s=HOUR_S))
    now_s, closed = ledger_site.END_S, None
    for step in [*steps, ("backfill",)]:
        match step:
            case "correct", kind, first, hours, value:
                from_s = ledger_site.START_S + first * HOUR_S
                until_s = min(from_s + hours * HOUR_S, ledger_site.END_S)
                ledger.correct("DE", kind, (from_s, until_s), value, Reason("me", "metered"), now_s)
                site.set(kind, from_s, until_s, value)
            case ("backfill",):
                ledger.rebook(site.published(), now_s)
            case ("close",) if closed is None:
                ledger.close_month(ledger_site.MAY, signer, now_s)
                closed = ledger_site.month_of(ledger, ledger_site.MAY)
            case "prune", days:
                ledger.prune(now_s + days * 86400.0)
        assert closed is None or ledger_site.month_of(ledger, ledger_site.MAY) == closed
    for number, row in enumerate(sorted(ledger.usage(Grouping.NAMESPACE), key=lambda row: row.namespace)):
        for name, value in site.expected(number).items():
            assert getattr(row.energy, name) == pytest.approx(value, rel=1e-9)
    assert ledger.verify(verify_signature).broken is None
    ledger.prune(now_s + 30 * 86400.0)
    entries = [entry for entry in ledger.journal() if entry.namespace == site.pods[0].namespace]
    told = math.fsum(entry.energy.emissions_g for entry in entries)
    assert told == pytest.approx(site.expected(0)["emissions_g"], rel=1e-9)
    ledger.close()
