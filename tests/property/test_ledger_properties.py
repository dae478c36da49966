"""Deaths change nothing in the ledger, wherever they strike and however often."""

import contextlib

from hypothesis import given, settings
from hypothesis import strategies as st

from joulie.adapters.ledger import LedgerSettings, open_ledger
from joulie.domain.accounting.records import Completion, Cycle, PodMeta
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
