"""A month's report that is signed, and linked to the trials that measured its savings."""

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from joulie.adapters.ledger import LedgerSettings, open_ledger
from joulie.apps.cli.ledger import ledger as command
from joulie.apps.cli.month_report import problem_of
from joulie.program.errors import UserError
from support.ledger_site import new_key
from support.sci_month import STEP_S, book_month

TRIAL = {
    "trial": "autumn",
    "howKnown": "measured by trial",
    "headline": "Trial autumn: enforcing saved 6.1% of the energy per work",
    "saving": {"saved": 0.061, "low": 0.048, "high": 0.074, "pairs": 12},
    "savingAtEqualWork": None,
    "protocol": {"startTime": "2026-10-05T00:00:00Z", "endTime": "2026-10-12T00:00:00Z", "seed": 3},
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A ledger, a key, the report of a trial, and the month's report signed with them."""
    folder = tmp_path_factory.mktemp("signed")
    url = f"sqlite:///{folder / 'ledger.db'}"
    ledger = open_ledger(url, LedgerSettings(max_gap_s=2 * STEP_S))
    book_month(ledger, folder)
    ledger.close()
    key, trial = new_key(folder / "key.pem"), folder / "autumn.json"
    trial.write_text(json.dumps(TRIAL))
    found = run(url, "report", "2026-10", "-o", "json", "--trial", trial, "--key", key)
    signed = folder / "report.json"
    signed.write_text(found.output)
    return SimpleNamespace(
        folder=folder, url=url, key=key, trial=trial, signed=signed, document=json.loads(found.output)
    )


def run(url, *arguments):
    return CliRunner().invoke(command, ["--ledger", url, *map(str, arguments)], standalone_mode=False)


def check(site, *arguments):
    found = run("sqlite:////nowhere", "check", *arguments)
    return found.return_value, found.output


def test_the_signed_report_has_the_figures_and_the_saving_with_how_it_is_known(site):
    plain = json.loads(run(site.url, "report", "2026-10", "-o", "json").output)
    assert {key: value for key, value in site.document.items() if key in plain} == plain
    (saving,) = site.document["measuredSavings"]
    assert (saving["trial"], saving["howKnown"]) == ("autumn", "measured by trial")
    assert saving["saving"] == {"saved": 0.061, "low": 0.048, "high": 0.074}
    table = run(site.url, "report", "2026-10", "--trial", site.trial).output
    assert (
        "- measured by trial, 2026-10-05T00:00:00Z to 2026-10-12T00:00:00Z: Trial autumn: enforcing saved 6.1%" in table
    )


def test_what_was_signed_is_checked_without_the_ledger(site):
    status, told = check(site, site.signed, "--public-key", site.key, "--trial", site.trial)
    assert (status, told.splitlines()[0]) == (0, "the report of 2026-10 is as it was signed")
    assert "give --public-key" in check(site, site.signed)[1]


@pytest.mark.parametrize(
    ("where", "why"),
    [
        (("total", "energyKWh"), "changed after it was signed"),
        (("measuredSavings", 0, "saving", "saved"), "changed after it was signed"),
        (("signature", "value"), "changed after it was signed"),
        (("signature", "algorithm"), "of no form that is known"),
        (("signature",), "it is not signed"),
    ],
)
def test_whatever_was_changed_is_not_to_be_believed(site, tmp_path, where, why):
    document = json.loads(site.signed.read_text())
    *path, last = where
    inner = document
    for step in path:
        inner = inner[step]
    inner[last] = 0.5 if isinstance(inner[last], float) else "AAAA"
    changed = tmp_path / "changed.json"
    changed.write_text(json.dumps(document))
    status, told = check(site, changed)
    assert (status, why in told) == (1, True), told


def test_another_key_or_another_trial_is_told(site, tmp_path):
    status, told = check(site, site.signed, "--public-key", new_key(tmp_path / "other.pem"))
    assert (status, "another key" in told) == (1, True)
    other = tmp_path / "other.json"
    other.write_text(json.dumps(TRIAL | {"trial": "other"}))
    status, told = check(site, site.signed, "--trial", other)
    assert (status, "not the report of a trial" in told) == (1, True)


@given(JSON)
def test_no_document_is_believed_by_accident(document):
    assert problem_of(document, None, {})


def test_mistakes_are_one_line(site, tmp_path):
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    late = tmp_path / "late.json"
    late.write_text(
        json.dumps(TRIAL | {"protocol": {"startTime": "2026-11-05T00:00:00Z", "endTime": "2026-11-06T00:00:00Z"}})
    )
    for arguments, why in (
        (("report", "2026-10", "--key", site.key), "add -o json"),
        (("report", "2026-10", "--trial", broken), "not a report of `joulie trial report -o json`"),
        (("report", "2026-10", "--trial", late), "not in 2026-10"),
        (("check", broken), "broken.json"),
    ):
        error = run(site.url, *arguments).exception
        assert isinstance(error, UserError), error
        assert why in str(error)
