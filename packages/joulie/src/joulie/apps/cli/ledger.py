"""`joulie ledger`: verify, list, correct, close and export the accounts."""

from __future__ import annotations

import base64
import getpass
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import click
import msgspec

from joulie.adapters.inventory_file import load_inventory
from joulie.adapters.ledger import SqlLedger, open_ledger
from joulie.adapters.program_api.report import report_answer
from joulie.adapters.signing import Ed25519Signer, KeyFileError, read_public_key, verify_signature
from joulie.apps.cli.month_report import (
    is_pdf,
    measured_savings,
    month_document,
    month_pdf,
    problem_of,
    saving_note,
    signature_file,
)
from joulie.apps.kubectl.report import print_report
from joulie.domain.accounting.factors import FACTOR_KINDS, FactorKind
from joulie.domain.accounting.inventory import Inventory
from joulie.domain.accounting.journal import Correction, Entry, Month, Reason, Signer, corrections
from joulie.domain.accounting.month_savings import month_savings, read_evidence
from joulie.domain.accounting.records import Energy
from joulie.domain.accounting.sci import report
from joulie.domain.quantities import JOULES_PER_KWH
from joulie.output_files import output_file
from joulie.ports.ledger import LedgerError
from joulie.program.commands import CommandGroup
from joulie.program.documents import print_document
from joulie.program.errors import UserError
from joulie.program.numbers import FiniteFloat

BROKEN = 1
"""Exit code of ``verify`` where an entry is broken; a ledger that cannot be read is a user error, 2."""
_TIME_FORMATS = ["%Y-%m-%dT%H:%M:%SZ", "%Y-%m-%dT%H:%MZ", "%Y-%m-%d"]


@click.group(cls=CommandGroup, path="ledger", context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--ledger",
    "url",
    envvar="LEDGER_URL",
    default="sqlite:////var/lib/joulie/ledger.db",
    show_default=True,
    help="Where the accounts are: a SQLite file, or postgresql+psycopg://user@host/database.",
)
@click.option(
    "--ledger-file",
    "url_file",
    envvar="LEDGER_URL_FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File with that address, for one that holds a password.",
)
@click.pass_context
def ledger(context: click.Context, url: str, url_file: Path | None) -> None:
    """Verify, correct, close and export the accounts of `joulie accounting`.

    All of it works while the accounting runs: kubectl exec joulie-accounting-0 -- joulie ledger verify.
    """
    context.obj = url if url_file is None else _text_of(url_file)


@ledger.command("verify")
@click.option(
    "--public-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file with the only key that may have signed; without it, the keys in the ledger are printed.",
)
@click.option(
    "--published",
    multiple=True,
    metavar="NUMBER:HASH",
    help="An entry as it was published outside of the ledger; can be given again.",
)
@click.pass_obj
def verify(url: str, public_key: Path | None, published: tuple[str, ...]) -> int:
    """Check the journal: its hash chain, and the signatures of closed months.

    Exit codes: 0 all entries are sound; 1 an entry is broken, and the first one is named; 2 the ledger cannot be read.
    """
    key = None if public_key is None else _readable(public_key)
    with _opened(url) as opened:
        found = opened.verify(verify_signature, public_key=key, published=dict(map(_published, published)))
    if found.broken is not None:
        click.echo(f"BROKEN at entry {found.broken.number}: {found.broken.problem}")
        click.echo(f"{found.entries} entries before it are sound")
        return BROKEN
    click.echo(f"{found.entries} entries are sound; the last hash is {found.head}")
    click.echo(f"closed months: {', '.join(found.months) or 'none'}")
    for name in sorted(found.keys):
        click.echo(f"signed by {name}" + ("" if key else " (give --public-key to check that it is yours)"))
    return 0


@ledger.command("corrections")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", help="Output format.")
@click.pass_obj
def list_corrections(url: str, output: str) -> None:
    """List all corrections of the past: who, when, why, from what to what, and what it changed."""
    with _opened(url) as opened:
        for correction in corrections(opened.journal()):
            click.echo(_line(correction) if output == "table" else json.dumps(_document(correction)))


@ledger.command("correct")
@click.option("--zone", required=True, help="Zone of the grid.")
@click.option("--factor", "kind", required=True, type=click.Choice([one.value for one in FACTOR_KINDS]), help="Which.")
@click.option("--from", "since", required=True, type=click.DateTime(_TIME_FORMATS), help="Start, UTC.")
@click.option("--until", required=True, type=click.DateTime(_TIME_FORMATS), help="End, UTC.")
@click.option("--value", required=True, type=FiniteFloat(), help="The right value: g/kWh, currency/kWh, or a PUE.")
@click.option("--why", required=True, help="Reason, for the auditor.")
@click.option("--who", default=getpass.getuser, show_default="the user", help="Who corrects it.")
@click.pass_obj
def correct(url: str, zone: str, kind: str, since: datetime, until: datetime, value: float, why: str, who: str) -> None:
    """Correct a factor of the past: carbon intensity, price or PUE of a zone, and print what that changes by workload.

    Nothing is overwritten: the journal gets the change, and the differences that follow from it, by workload and day.
    Those of a closed month are booked in the open one. Signals correct no factor that was corrected by hand.
    """
    factor = FactorKind(kind)
    _check_value(factor, value)
    span_s = (_utc_s(since), _utc_s(until))
    if span_s[1] <= span_s[0]:
        raise UserError("--until must be after --from")
    with _opened(url) as opened:
        done = opened.correct(zone, factor, span_s, value, Reason(who, why), time.time())
    by_workload: dict[str, list[Energy]] = {}
    for one in done:
        by_workload.setdefault(_workload(one.entry), []).append(one.entry.energy)
    for workload, energies in by_workload.items():
        click.echo(f"{workload}: {_amounts(energies)} in {len(energies)} entries")
    if done:
        click.echo(
            f"in all: {_amounts([one.entry.energy for one in done])}; `joulie ledger corrections` lists each entry"
        )
    else:
        raise UserError(f"nothing was booked on {kind} of zone {zone} in that time, or it has that value already")


@ledger.command("close")
@click.argument("month")
@click.option(
    "--key",
    required=True,
    envvar="LEDGER_SIGNING_KEY_FILE",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file with the Ed25519 private key.",
)
@click.pass_obj
def close(url: str, month: str, key: Path) -> None:
    """Close a MONTH (2026-10, UTC) for good, and sign the journal."""
    try:
        closed, signer = Month.parse(month), Ed25519Signer(key)
    except ValueError as error:
        raise UserError(str(error)) from error
    with _opened(url) as opened:
        entry = opened.close_month(closed, signer, time.time())
    click.echo(f"{closed} is closed; publish this outside of the ledger: {entry.number}:{entry.hash}")


@ledger.command("export")
@click.pass_obj
def export(url: str) -> None:
    """Print all that the figures follow from, one JSON object a line: factors, postings, journal, and open hours.

    examples/recompute.py computes the figures again from it, and shares no code with Joulie.
    """
    with _opened(url) as opened:
        for record in opened.evidence():
            click.echo(json.dumps(record, separators=(",", ":"), ensure_ascii=False))


@ledger.command("report")
@click.argument("month")
@click.option(
    "--inventory",
    "file",
    envvar="INVENTORY_PATH",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="YAML file of contracts and residual mixes; without it, market-based emissions are unknown.",
)
@click.option(
    "--trial",
    "trials",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="What `joulie trial report -o json` wrote of a trial in that month, for its saving; can be given again.",
)
@click.option(
    "--key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file with an Ed25519 private key to sign the report with (-o json or pdf).",
)
@click.option(
    "-o", "--output", type=click.Choice(["table", "json", "yaml", "pdf"]), default="table", help="Output format."
)
@click.option(
    "-f",
    "--file",
    "pdf",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of -o pdf; with --key, its signature is written beside it, with .sig after its name.",
)
@click.pass_obj
def report_month(
    url: str,
    month: str,
    file: Path | None,
    trials: tuple[Path, ...],
    key: Path | None,
    output: str,
    pdf: Path | None,
) -> None:
    """Report a MONTH (2026-10, UTC): SCI by workload (ISO/IEC 21031), and emissions by the GHG Protocol.

    examples/recompute_report.py computes it again from the export and the report's own factors. The PDF is tagged and
    has the report as JSON attached; its signature is that of its bytes, which `joulie ledger check` and openssl verify.
    """
    if key is not None and output not in {"json", "pdf"}:
        raise UserError("a signed report is JSON or a PDF: add -o json or -o pdf")
    if (output == "pdf") != (pdf is not None):
        raise UserError("-o pdf and --file FILE go together")
    try:
        inventory = Inventory() if file is None else load_inventory(file)
        asked = Month.parse(month)
        signer = None if key is None else Ed25519Signer(key)
    except ValueError as error:
        raise UserError(str(error)) from error
    savings = measured_savings(trials, asked)
    with _opened(url) as opened:
        records, texts = opened.month(asked), opened.texts()
        deferred = opened.savings(since_s=asked.starts_s)
    if not records.energy and not records.earlier:
        raise UserError(f"nothing is booked in {asked}")
    evidence, problems = read_evidence(texts)
    answer = report_answer(report(records, inventory), month_savings(asked, evidence, deferred), problems)
    if pdf is not None:
        _write_pdf(pdf, month_pdf(answer, savings, asked, signer), signer)
    elif output != "table":
        print_document(month_document(answer, savings, signer), output)
    else:
        print_report(answer, output)
        for one in savings:
            click.echo(f"- {saving_note(one)}")


@ledger.command("check")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--public-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="PEM file with the only key that may have signed; without it, the report's own is printed.",
)
@click.option(
    "--trial",
    "trials",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A trial's report to which it should be linked; can be given again.",
)
def check(file: Path, public_key: Path | None, trials: tuple[Path, ...]) -> int:
    """Check the signature of a report FILE that `joulie ledger report --key` wrote. It needs no ledger.

    Of a PDF it is in a file beside it, FILE.sig; the JSON that is attached to it has one of its own.

    Exit codes: 0 it is as it was signed; 1 it is not, and why is printed; 2 a file cannot be read.
    """
    key = None if public_key is None else _readable(public_key)
    try:
        if is_pdf(content := file.read_bytes()):
            return _check_pdf(file, content, key)
        document = msgspec.json.decode(content)
        contents = {one: one.read_bytes() for one in trials}
    except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: {error}") from error
    if problem := problem_of(document, key, contents):
        click.echo(f"DO NOT BELIEVE {file}: {problem}")
        return BROKEN
    click.echo(f"the report of {document.get('month')} is as it was signed")
    click.echo(
        f"signed by {document['signature']['publicKey']}"
        + ("" if key else " (give --public-key to check whose that is)")
    )
    return 0


def _write_pdf(file: Path, content: bytes, signer: Signer | None) -> None:
    """Write a PDF and its signature.

    Raises:
        UserError: a file cannot be written.
    """
    written = {file: content}
    if signer is not None:
        written[signature_file(file)] = base64.b64decode(signer.sign(content))
    try:
        for path, data in written.items():
            with output_file(path) as part:
                part.write_bytes(data)
    except OSError as error:
        raise UserError(f"--file {file}: cannot be written: {error.strerror or error}") from error


def _check_pdf(file: Path, content: bytes, key: str | None) -> int:
    """Check a PDF by the signature beside it; see `check`.

    Raises:
        UserError: no key is given, which no signature of a file names.
        OSError: there is no signature.
    """
    if key is None:
        raise UserError(f"{file}: the signature of a PDF names no key: give --public-key")
    signature = base64.b64encode(signature_file(file).read_bytes()).decode()
    if not verify_signature(key, content, signature):
        click.echo(f"DO NOT BELIEVE {file}: it is not as it was signed, or it is signed by another key")
        return BROKEN
    click.echo(f"{file} is as it was signed\nsigned by {key}")
    return 0


@contextmanager
def _opened(url: str) -> Iterator[SqlLedger]:
    try:
        opened = open_ledger(url)
        try:
            yield opened
        finally:
            opened.close()
    except LedgerError as error:
        raise UserError(str(error)) from error


def _line(correction: Correction) -> str:
    entry, changes = correction.entry, correction.changes
    first = changes[0]
    was = "unknown" if first.was is None else f"{first.was:g}"
    more = f" and {len(changes) - 1} more" if len(changes) > 1 else ""
    booked = "" if entry.from_s == entry.concerns_s else f", booked {_utc(entry.from_s)}"
    return (
        f"{entry.number} {_utc(entry.recorded_s)} {_workload(entry)} {_utc(entry.concerns_s)}{booked}: "
        f"{_amounts([entry.energy])}; "
        f"{first.kind} {first.zone} {_utc(first.from_s)} {was} -> {first.becomes:g}{more}; {first.who}: {first.why}"
    )


def _workload(entry: Entry) -> str:
    return "/".join(part for part in (entry.namespace, entry.owner_kind, entry.owner_name) if part)


def _amounts(energies: Sequence[Energy]) -> str:
    """Sums of differences."""
    energy_kwh = sum(one.energy_j for one in energies) / JOULES_PER_KWH
    emissions_g, cost = sum(one.emissions_g for one in energies), sum(one.cost for one in energies)
    return f"{energy_kwh:+.6f} kWh {emissions_g:+.6f} g {cost:+.6f} cost"


def _document(correction: Correction) -> dict[str, object]:
    entry = correction.entry
    names = ("number", "recorded_s", "from_s", "until_s", "concerns_s", "namespace", "owner_kind", "owner_name", "zone")
    return {name: getattr(entry, name) for name in names} | {
        "energy": _slots(entry.energy),
        "changes": [_slots(one) for one in correction.changes],
    }


def _slots(one: object) -> dict[str, object]:
    return {name: getattr(one, name) for name in type(one).__slots__}  # type: ignore[attr-defined]


def _check_value(kind: FactorKind, value: float) -> None:
    minimum = 1.0 if kind in {FactorKind.PUE, FactorKind.GPU_PUE} else 0.0
    if not math.isfinite(value) or (kind is not FactorKind.PRICE and value < minimum):
        raise UserError(f"invalid {kind.value} {value:g}: it must be a number of at least {minimum:g}")


def _published(text: str) -> tuple[int, str]:
    number, _, digest = text.partition(":")
    if not number.isdigit() or len(digest) != 64:
        raise UserError(f"invalid --published {text!r}: write NUMBER:HASH, as `joulie ledger close` prints it")
    return int(number), digest


def _readable(file: Path) -> str:
    try:
        return read_public_key(file)
    except KeyFileError as error:
        raise UserError(str(error)) from error


def _text_of(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise UserError(str(error)) from error


def _utc(time_s: float) -> str:
    return datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%MZ")


def _utc_s(time_: datetime) -> float:
    return time_.replace(tzinfo=UTC).timestamp()
