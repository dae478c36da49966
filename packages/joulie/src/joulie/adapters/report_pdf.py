"""A report as a PDF for people who file one: tagged for screen readers, fonts embedded, equal bytes for equal reports.

Typst writes it by PDF/UA-1 and PDF/A-3a; the report as JSON is attached, so that figures need not be read off a page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
import typst

_TEMPLATE = b"""
#let report = json(bytes(sys.inputs.report))
#set document(title: report.title, author: "Joulie")
#set page(paper: "a4", flipped: true, margin: 15mm, numbering: "1 / 1")
#set text(font: "Libertinus Serif", size: 9pt, lang: "en")
#title()
#for line in report.lead { par(line) }
#for one in report.tables [
  #heading(level: 1, one.title)
  #table(columns: one.columns.len(), stroke: 0.4pt, table.header(..one.columns.map(strong)), ..one.rows.flatten())
]
#heading(level: 1, "Notes")
#list(..report.notes)
#pdf.attach(
  "report.json", bytes(sys.inputs.source), relationship: "source", mime-type: "application/json",
  description: "The report as JSON",
)
"""
_STANDARDS: list[typst.PDFStandard] = ["ua-1", "a-3a"]


class ReportTable(NamedTuple):
    """A table of a report.

    Attributes:
        title: its title.
        columns: headings.
        rows: cells of each row, as many as there are headings.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


class ReportPage(NamedTuple):
    """What a report shows; texts are shown as they are.

    Attributes:
        title: title of the document.
        lead: paragraphs before the tables.
        tables: tables with rows.
        notes: list at the end, at least one.
    """

    title: str
    lead: Sequence[str]
    tables: Sequence[ReportTable]
    notes: Sequence[str]


def report_pdf(page: ReportPage, source: bytes, time_s: int) -> bytes:
    """The PDF.

    Args:
        page: what it shows.
        source: the report as JSON, which is attached.
        time_s: what it names as the time of its creation, s since the epoch.
    """
    shown = page._replace(tables=[one for one in page.tables if one.rows])
    inputs = {"report": msgspec.json.encode(_plain(shown)).decode(), "source": source.decode()}
    written = typst.compile(
        _TEMPLATE,
        format="pdf",
        ignore_system_fonts=True,
        sys_inputs=inputs,
        pdf_standards=_STANDARDS,
        timestamp=time_s,
    )
    assert isinstance(written, bytes), "one document"
    return written


def _plain(page: ReportPage) -> dict[str, object]:
    return page._asdict() | {"tables": [one._asdict() for one in page.tables]}
