"""Corrections of the past, closed months, and what can be computed again without Joulie."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from joulie.adapters.ledger import LedgerSettings, open_ledger
from joulie.adapters.signing import Ed25519Signer, verify_signature
from joulie.apps.cli.ledger import ledger as command
from joulie.domain.accounting.factors import FactorKind
from joulie.domain.accounting.journal import EntryKind, Reason, corrections
from joulie.domain.accounting.records import Cycle, Grouping, PodMeta, PowerQuality, Sample
from joulie.ports.ledger import LedgerError
from support.ledger_site import END_S, HOUR_S, JUNE_S, MAY, START_S, Site, month_of, new_key

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def key(tmp_path_factory):
    return new_key(tmp_path_factory.mktemp("keys") / "key.pem")


def test_must_show_outage_backfill_corrected_factor_and_closed_month(tmp_path, key):
    site, url = Site(), f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger = open_ledger(url, LedgerSettings(hours_kept_s=2 * HOUR_S))
    for index, time_s in enumerate(site.times_s.tolist()):
        ledger.append(site.cycle(index))
        if time_s == JUNE_S + 2 * HOUR_S:
            unknown_j = sum(row.energy.energy_without_intensity_j for row in ledger.usage(Grouping.NAMESPACE))
            assert unknown_j > 0.0
            ledger.rebook(site.published(), time_s)
            assert ledger.rebook(site.published(), time_s) == [], "nothing is corrected twice"
        if time_s == JUNE_S + 12 * HOUR_S:
            ledger.close_month(MAY, Ed25519Signer(key), time_s)
            closed = month_of(ledger, MAY)
        ledger.prune(time_s)
    # A factor of the closed month was wrong, and so was its PUE; a price of the open month is revised.
    site.set(FactorKind.INTENSITY, JUNE_S - 15 * HOUR_S, JUNE_S - 12 * HOUR_S, 111.0)
    by_hand = Reason("auditor", "the plant's own meter")
    span_s = (JUNE_S - 15 * HOUR_S, JUNE_S - 12 * HOUR_S)
    ledger.correct("DE", FactorKind.INTENSITY, span_s, 111.0, by_hand, END_S)
    site.set(FactorKind.PUE, JUNE_S - 8 * HOUR_S, JUNE_S + 3 * HOUR_S, 1.07)
    ledger.correct("DE", FactorKind.PUE, (JUNE_S - 8 * HOUR_S, JUNE_S + 3 * HOUR_S), 1.07, by_hand, END_S)
    site.set(FactorKind.PRICE, JUNE_S + 4 * HOUR_S, JUNE_S + 5 * HOUR_S, 0.99)
    ledger.rebook(site.published(), END_S)

    assert month_of(ledger, MAY) == closed, "a closed month stays as it was signed"
    worst = 0.0
    rows = {row.namespace: row.energy for row in ledger.usage(Grouping.NAMESPACE)}
    for number, pod in enumerate(site.pods):
        for name, value in site.expected(number).items():
            worst = max(worst, abs(getattr(rows[pod.namespace], name) - value) / abs(value))
        assert rows[pod.namespace].energy_without_intensity_j == pytest.approx(0.0, abs=1e-3)
    assert worst < 1e-9
    listed = list(corrections(ledger.journal()))
    assert {EntryKind.CORRECTION} == {one.entry.kind for one in listed}
    assert {one.changes[0].why for one in listed} == {
        "its signal became known after the energy was booked",
        "its source has revised the value",
        "the plant's own meter",
    }
    for one in listed:
        if one.entry.recorded_s > JUNE_S + 12 * HOUR_S:
            assert one.entry.from_s >= JUNE_S, "corrections of a closed month are booked in the open one"
    ledger.close()
    found = run(url, "verify")
    assert (found.exit_code, "2025-05" in found.output) == (0, True), found.output
    assert recomputed(url, tmp_path).returncode == 0
    sys.stdout.write(f"largest deviation {worst:.1e}\n{run(url, 'corrections').output}{found.output}")


def run(url, *arguments):
    return CliRunner().invoke(command, ["--ledger", url, *arguments], standalone_mode=False)


def recomputed(url, folder):
    file = folder / "ledger.jsonl"
    file.write_text(run(url, "export").output)
    script = ROOT / "examples" / "recompute.py"
    assert len(script.read_text().splitlines()) <= 50
    assert "joulie." not in script.read_text().replace("joulie ledger", "")
    return subprocess.run([sys.executable, "-I", script, file], capture_output=True, text=True, check=False)


# ---- what a reader of the journal can trust


@pytest.fixture
def closed(tmp_path, key):
    """A ledger with a closed month: its URL, and what was published at the closing."""
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    ledger, site = open_ledger(url), Site()
    for index in range(0, len(site.times_s), 12):
        ledger.append(site.cycle(index))
    entry = ledger.close_month(MAY, Ed25519Signer(key), END_S)
    ledger.correct("DE", FactorKind.PUE, (START_S, JUNE_S), 1.1, Reason("me", "metered"), END_S)
    ledger.close()
    return url, f"{entry.number}:{entry.hash}"


def damage(url, *statements):
    with sqlite3.connect(url.removeprefix("sqlite:///")) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


@pytest.mark.parametrize(
    ("statement", "broken"),
    [
        ("UPDATE entries SET emissions_g = emissions_g * 0.5 WHERE number = 2", "entry 2: its content does not have"),
        ("UPDATE entries SET namespace = 'other' WHERE number = 1", "entry 1: its content does not have"),
        ("DELETE FROM entries WHERE number = 2", "entry 2: number 2 is missing"),
    ],
)
def test_a_changed_ledger_is_told_by_its_first_broken_entry(closed, statement, broken):
    url, _ = closed
    assert run(url, "verify").return_value == 0
    damage(url, statement)
    found = run(url, "verify")
    assert found.return_value == 1
    assert f"BROKEN at {broken}" in found.output


def test_a_chain_made_anew_is_told_by_its_signature_or_by_what_was_published(closed, tmp_path, key):
    url, published = closed
    other = f"sqlite:///{tmp_path / 'other.db'}"
    ledger = open_ledger(other)
    site = Site(seed=8)
    for index in range(0, len(site.times_s), 12):
        ledger.append(site.cycle(index))
    ledger.close_month(MAY, Ed25519Signer(new_key(tmp_path / "forged.pem")), END_S)
    ledger.close()
    assert run(other, "verify").return_value == 0
    found = run(other, "verify", "--public-key", str(key))
    assert (found.return_value, "another key" in found.output) == (1, True)
    found = run(other, "verify", "--published", published)
    assert (found.return_value, "entries were replaced" in found.output) == (1, True)
    damage(url, "DELETE FROM entries WHERE number >= " + published.partition(":")[0])
    found = run(url, "verify", "--public-key", str(key), "--published", published)
    assert (found.return_value, "entries were removed" in found.output) == (1, True)


def test_what_cannot_be_closed_or_corrected_says_why(closed, tmp_path, key):
    url, _ = closed
    for arguments, problem in (
        (["close", "2025-05", "--key", str(key)], "2025-05 is closed already"),
        (["close", "2999-01", "--key", str(key)], "2999-01 is not over"),
        (["close", "May", "--key", str(key)], "write it like 2026-10"),
        (["close", "2025-06", "--key", str(ROOT / "LICENSE")], "openssl genpkey -algorithm ed25519"),
        (["close", "2025-06", "--key", str(key)], "2 pods are not accounted to the end of 2025-06"),
        (correct("--value", "0.9"), "at least 1"),
        (correct("--value", "1.1"), "has that value already"),
        (correct("--value", "1.1", zone="FR"), "nothing was booked on pue of zone FR"),
    ):
        found = run(url, *arguments)
        assert problem in str(found.exception), found.output
    found = run(f"sqlite:///{tmp_path / 'absent' / 'x.db'}", "verify")
    assert found.exception.exit_code == 2


def test_a_correction_by_hand_is_summed_by_workload(closed):
    url, _ = closed
    before = len(run(url, "corrections").output.splitlines())
    *workloads, whole = run(url, *correct("--value", "1.3")).output.splitlines()
    listed = run(url, "corrections").output.splitlines()[before:]
    kwh = sum(float(line.partition(": ")[2].split()[0]) for line in listed)
    assert float(whole.removeprefix("in all: ").split()[0]) == pytest.approx(kwh, abs=1e-3)
    assert sum(int(line.split()[-2]) for line in workloads) == len(listed) >= len(workloads) > 1


def correct(*more, zone="DE"):
    span = ["--from", "2025-05-31T04:00Z", "--until", "2025-06-01", "--who", "me", "--why", "metered"]
    return ["correct", "--zone", zone, "--factor", "pue", *span, *more]


def test_what_is_corrected_by_hand_is_not_undone_by_a_signal(tmp_path):
    ledger, site = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}"), Site()
    for index in range(12):
        ledger.append(site.cycle(index))
    assert ledger.correct("DE", FactorKind.INTENSITY, (START_S, START_S + HOUR_S), 1.0, Reason("me", "x"), END_S)
    assert ledger.rebook(site.published(), END_S) == []
    ledger.close()


def test_energy_that_is_found_late_is_booked_in_the_open_month(tmp_path, key):
    ledger, site = open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}"), Site()
    for index in range(0, 145, 12):
        ledger.append(site.cycle(index))
    ledger.close_month(MAY, Ed25519Signer(key), JUNE_S + 4 * HOUR_S)
    before = month_of(ledger, MAY)
    cycle = site.cycle(150)
    late = PodMeta("late", "train", "late", started_s=JUNE_S - 2 * HOUR_S, zone="DE")
    ledger.append(Cycle(cycle.time_s, [Sample(late, 100.0, 0.0, 0.0, PowerQuality.ASSUMED, "requests")]))
    assert month_of(ledger, MAY) == before
    (row,) = ledger.usage(Grouping.JOB, since_s=JUNE_S, namespace="train")[-1:]
    assert row.energy.cpu_j == pytest.approx(100.0 * (cycle.time_s - late.started_s))
    ledger.prune(END_S + 5 * 86400.0)
    assert month_of(ledger, MAY) == before
    assert ledger.verify(verify_signature).broken is None
    ledger.close()


# ---- version 1


def test_a_ledger_of_version_1_is_migrated_in_place(tmp_path):
    file = tmp_path / "ledger.db"
    with sqlite3.connect(file) as connection:
        connection.executescript((ROOT / "tests" / "support" / "ledger_v1.sql").read_text())
    connection.close()
    ledger = open_ledger(f"sqlite:///{file}")
    (whole,) = ledger.usage(Grouping.NAMESPACE)
    energy = whole.energy
    assert (energy.cpu_j, energy.energy_j) == (26287200.0, 65588400.0)
    assert (energy.emissions_g, energy.energy_without_intensity_j, energy.cost) == (8000.5, 7984800.0, 4.8003)
    assert (energy.marginal_g, energy.energy_without_marginal_j) == (0.0, energy.energy_j)
    assert {row.owner_name: row.energy.energy_j for row in ledger.usage(Grouping.JOB)} == {
        "train": 42865200.0,
        "web": 22723200.0,
    }
    assert ledger.verify(verify_signature).entries == 4
    assert json.loads(next(ledger.journal()).note) == {"migrated_from": 1}
    known = ledger.open_pods()["web-uid"]
    end_s = known.sampled_s + 30 * 86400.0
    for time_s in (known.sampled_s + HOUR_S, known.sampled_s + 26 * HOUR_S):
        ledger.append(Cycle(time_s, [Sample(known.pod, 100.0, 0.0, 0.0, PowerQuality.MODELLED, "cadvisor")]))
    ledger.prune(end_s)
    with pytest.raises(LedgerError, match="corrections reach back to 2025-06-17"):
        ledger.correct("DE", FactorKind.PUE, (known.sampled_s - HOUR_S, end_s), 1.5, Reason("me", "x"), end_s)
    ledger.close()
    assert open_ledger(f"sqlite:///{file}").verify(verify_signature).broken is None
    assert recomputed(f"sqlite:///{file}", tmp_path).returncode == 0


def test_a_marginal_ledger_of_version_1_enters_no_inventory(tmp_path):
    file = tmp_path / "ledger.db"
    with sqlite3.connect(file) as connection:
        connection.executescript((ROOT / "tests" / "support" / "ledger_v1.sql").read_text())
        connection.execute("UPDATE state SET value = 'marginal' WHERE key = 'basis'")
    connection.close()
    ledger = open_ledger(f"sqlite:///{file}")
    (whole,) = ledger.usage(Grouping.NAMESPACE)
    assert (whole.energy.emissions_g, whole.energy.energy_without_intensity_j) == (0.0, whole.energy.energy_j)
    assert (whole.energy.marginal_g, whole.energy.energy_without_marginal_j) == (8000.5, 7984800.0)
    ledger.close()
