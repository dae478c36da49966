"""A month's report with the savings that trials measured in it, and with a signature, as JSON or PDF.

Trials are linked by the SHA-256 of their report (`joulie trial report -o json`), from which the saving can be computed
again, so that a signed month says which measurement its savings are of.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec

from joulie.adapters.kubernetes.times import parse_rfc3339
from joulie.adapters.program_api.report import ReportAnswer
from joulie.adapters.signing import verify_signature
from joulie.apps.kubectl.report import written_pdf
from joulie.domain.accounting.journal import Month, Signer
from joulie.program.errors import UserError

ALGORITHM = "Ed25519"
_SIGNATURE = "signature"


class TrialSaving(msgspec.Struct, frozen=True):
    """A saving of a trial, as shares: 0.05 is 5 %. Bounds are None with too few pairs of blocks."""

    saved: float
    low: float | None
    high: float | None


class _Times(msgspec.Struct, frozen=True, rename="camel"):
    start_time: str
    end_time: str


class _TrialReport(msgspec.Struct, frozen=True, rename="camel"):
    trial: str
    how_known: str
    headline: str
    saving: TrialSaving | None
    saving_at_equal_work: TrialSaving | None
    protocol: _Times


class MeasuredSaving(msgspec.Struct, frozen=True, rename="camel"):
    """What a trial says of a month.

    Attributes:
        trial: its name.
        how_known: how its saving is known.
        headline: what came out, in a sentence.
        saving: of energy per work; None if the trial gives none.
        saving_at_equal_work: the same at equal work.
        start_time: start of its first block.
        end_time: end of its last block.
        sha256: of the file of its report.
    """

    trial: str
    how_known: str
    headline: str
    saving: TrialSaving | None
    saving_at_equal_work: TrialSaving | None
    start_time: str
    end_time: str
    sha256: str


def measured_savings(files: Sequence[Path], month: Month) -> list[MeasuredSaving]:
    """What the reports of trials say of a month.

    Raises:
        UserError: a file cannot be read, is no report of a trial, or its trial was not in that month.
    """
    return [_measured(file, month) for file in files]


def _measured(file: Path, month: Month) -> MeasuredSaving:
    try:
        content = file.read_bytes()
        found = msgspec.json.decode(content, type=_TrialReport)
        start_s, end_s = parse_rfc3339(found.protocol.start_time), parse_rfc3339(found.protocol.end_time)
    except OSError as error:
        raise UserError(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise UserError(f"{file}: not a report of `joulie trial report -o json`: {error}") from error
    if end_s <= month.starts_s or start_s >= month.ends_s:
        times = f"from {found.protocol.start_time} to {found.protocol.end_time}"
        raise UserError(f"{file}: trial {found.trial} ran {times}, not in {month}")
    return MeasuredSaving(
        found.trial,
        found.how_known,
        found.headline,
        found.saving,
        found.saving_at_equal_work,
        found.protocol.start_time,
        found.protocol.end_time,
        sha256(content).hexdigest(),
    )


def month_document(
    report: ReportAnswer, savings: Sequence[MeasuredSaving], signer: Signer | None = None
) -> dict[str, Any]:
    """The report as plain JSON, with the savings that were measured and, given a signer, its signature."""
    document: dict[str, Any] = msgspec.to_builtins(report)
    if savings:
        document["measuredSavings"] = msgspec.to_builtins(savings)
    if signer is not None:
        signature = signer.sign(signed_bytes(document))
        document[_SIGNATURE] = {"algorithm": ALGORITHM, "publicKey": signer.public_key, "value": signature}
    return document


def saving_note(saving: MeasuredSaving) -> str:
    """A measured saving in one line."""
    return f"{saving.how_known}, {saving.start_time} to {saving.end_time}: {saving.headline}"


def month_pdf(
    report: ReportAnswer, savings: Sequence[MeasuredSaving], month: Month, signer: Signer | None = None
) -> bytes:
    """The report as a PDF, with the same as JSON attached.

    Raises:
        UserError: the library that writes it is not installed.
    """
    lead = []
    if signer is not None:
        lead.append(
            f"Signed with the {ALGORITHM} key {signer.public_key}: the attached report.json has its signature in it, "
            "that of this file is beside it, in a file that ends in .sig."
        )
    document = month_document(report, savings, signer)
    try:
        return written_pdf(report, document, int(month.ends_s), lead, [*map(saving_note, savings)])
    except ModuleNotFoundError as error:
        raise UserError(f"a PDF needs {error.name}: pip install 'joulie[pdf]'") from error


def is_pdf(content: bytes) -> bool:
    """Whether a file is a PDF."""
    return content.startswith(b"%PDF-")


def signature_file(file: Path) -> Path:
    """Where the signature of a file is: 64 bytes, as openssl reads them."""
    return file.with_name(f"{file.name}.sig")


def signed_bytes(document: Mapping[str, Any]) -> bytes:
    """What the signature of a document is of: all of it but the signature, keys sorted, no spaces, UTF-8."""
    content = {key: value for key, value in document.items() if key != _SIGNATURE}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def problem_of(document: object, public_key: str | None, trials: Mapping[Path, bytes]) -> str:
    """Why a signed report is not to be believed; empty if it is.

    Args:
        document: the report, decoded.
        public_key: the only key that may have signed; None for whatever key it names.
        trials: files that should be the reports of its trials.
    """
    signature = document.get(_SIGNATURE) if isinstance(document, dict) else None
    if not (isinstance(document, dict) and isinstance(signature, dict)):
        return "it is not signed"
    key, value = signature.get("publicKey"), signature.get("value")
    if signature.get("algorithm") != ALGORITHM or not isinstance(key, str) or not isinstance(value, str):
        return "its signature is of no form that is known"
    if public_key is not None and key != public_key:
        return f"it is signed by another key: {key}"
    if not verify_signature(key, signed_bytes(document), value):
        return "it was changed after it was signed"
    linked = document.get("measuredSavings", [])
    known = [one.get("sha256") for one in linked if isinstance(one, dict)] if isinstance(linked, list) else []
    others = (file for file, content in trials.items() if sha256(content).hexdigest() not in known)
    return next((f"{file} is not the report of a trial that it is linked to" for file in others), "")
