"""A month's report that is signed, and linked to the trials that measured its savings."""

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pypdf import PdfReader

from joulie.adapters.ledger import LedgerSettings, open_ledger
from joulie.adapters.program_api.report import ReportAnswer
from joulie.adapters.report_pdf import ReportPage, ReportTable, report_pdf
from joulie.apps.cli.ledger import ledger as command
from joulie.apps.cli.month_report import problem_of
from joulie.apps.kubectl.report import report_tables
from joulie.program.errors import UserError
from support.ledger_site import new_key
from support.sci_month import STEP_S, book_month

pytestmark = pytest.mark.slow

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


@pytest.fixture(scope="module")
def pdf(site):
    file = site.folder / "report.pdf"
    arguments = ("report", "2026-10", "-o", "pdf", "--file", file, "--trial", site.trial, "--key", site.key)
    found = run(site.url, *arguments)
    assert (found.exception, found.output) == (None, "")
    return file


def test_the_pdf_shows_the_figures_of_the_api_and_has_the_signed_report_attached(site, pdf):
    found = PdfReader(pdf)
    ((attached,),) = found.attachments.values()
    assert json.loads(attached) == site.document
    text = " ".join(" ".join(page.extract_text() for page in found.pages).split())
    shown = report_tables(msgspec.convert(site.document, ReportAnswer))
    cells = [cell for _, columns, rows in shown for cell in (*columns, *(cell for row in rows for cell in row))]
    assert len(cells) > 40
    # Lines are broken where a cell is too narrow.
    squeezed = text.replace(" ", "")
    assert [cell for cell in cells if cell.replace(" ", "").replace("-", "") not in squeezed.replace("-", "")] == []
    total = site.document["total"]
    assert f"TOTAL {total['energyKWh']:,.3f} {total['locationBasedG']:,.1f}" in text
    assert f"measured by trial, {TRIAL['protocol']['startTime']}" in text
    assert site.document["signature"]["publicKey"] in squeezed


def test_the_pdf_is_tagged_has_its_fonts_and_equal_bytes_for_equal_reports(site, pdf, tmp_path):
    found = PdfReader(pdf)
    root = found.trailer["/Root"]
    assert (root["/MarkInfo"]["/Marked"], root["/Lang"], "/StructTreeRoot" in root) == (True, "en", True)
    claims = root["/Metadata"].get_data().decode()
    assert "<pdfuaid:part>1</pdfuaid:part>" in claims
    assert "<pdfaid:part>3</pdfaid:part><pdfaid:conformance>A</pdfaid:conformance>" in claims
    assert found.metadata.title == "Emissions of 2026-10 (open: figures can still change)"
    fonts = [font.get_object() for page in found.pages for font in page["/Resources"]["/Font"].values()]
    descriptors = [font["/DescendantFonts"][0].get_object()["/FontDescriptor"] for font in fonts]
    assert descriptors
    assert all(one.keys() & {"/FontFile2", "/FontFile3"} for one in descriptors)
    again = tmp_path / "again.pdf"
    run(site.url, "report", "2026-10", "-o", "pdf", "--file", again, "--trial", site.trial, "--key", site.key)
    for name in ("", ".sig"):
        assert Path(f"{again}{name}").read_bytes() == Path(f"{pdf}{name}").read_bytes()


def test_a_pdf_is_checked_by_its_signature_and_no_other_is_believed(site, pdf, tmp_path):
    assert check(site, pdf, "--public-key", site.key)[0] == 0
    changed, other = tmp_path / "changed.pdf", new_key(tmp_path / "other.pem")
    changed.write_bytes(pdf.read_bytes().replace(b"Typst", b"typst"))
    changed.with_name("changed.pdf.sig").write_bytes(Path(f"{pdf}.sig").read_bytes())
    for file, key in ((changed, site.key), (pdf, other)):
        status, told = check(site, file, "--public-key", key)
        assert (status, told.startswith("DO NOT BELIEVE")) == (1, True)
    alone = tmp_path / "alone.pdf"
    alone.write_bytes(pdf.read_bytes())
    for arguments, why in (((pdf,), "give --public-key"), ((alone, "--public-key", site.key), "alone.pdf.sig")):
        error = run(site.url, "check", *arguments).exception
        assert isinstance(error, UserError), error
        assert why in str(error)


def test_without_the_library_the_command_says_what_to_install(site, tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "joulie.adapters.report_pdf")
    monkeypatch.setitem(sys.modules, "typst", None)
    error = run(site.url, "report", "2026-10", "-o", "pdf", "--file", tmp_path / "x.pdf").exception
    assert isinstance(error, UserError)
    assert str(error) == "a PDF needs typst: pip install 'joulie[pdf]'"


def test_texts_of_the_cluster_are_not_read_as_markup():
    wild = '#panic("x") *b* $y$ <script> \\ "'
    page = ReportPage(wild, [wild], [ReportTable(wild, (wild,), [(wild,)]), ReportTable("none", ("A",), [])], [wild])
    text = PdfReader(io.BytesIO(report_pdf(page, b"{}", 0))).pages[0].extract_text()
    assert text.count(wild) == 6  # title, paragraph, heading, column, cell and note
    assert "none" not in text


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
        (("report", "2026-10", "-o", "pdf"), "-o pdf and --file FILE go together"),
        (("report", "2026-10", "--file", tmp_path / "x.pdf"), "-o pdf and --file FILE go together"),
        (("report", "2026-10", "-o", "pdf", "--file", tmp_path / "no" / "x.pdf"), "cannot be written"),
        (("report", "2026-10", "--trial", broken), "not a report of `joulie trial report -o json`"),
        (("report", "2026-10", "--trial", late), "not in 2026-10"),
        (("check", broken), "broken.json"),
    ):
        error = run(site.url, *arguments).exception
        assert isinstance(error, UserError), error
        assert why in str(error)
