"""The journal: what is booked for good, in a hash chain of entries that are only ever added.

An entry's hash is the SHA-256 of the hash before it and its own content, so that no entry can be changed, removed or
put in without all later hashes changing; the closing of a month signs the hash before it.
"""

from __future__ import annotations

import hashlib
import json
from calendar import monthrange
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

from joulie.domain.accounting.records import Energy

GENESIS = "0" * 64
"""The hash before the first entry."""
_FORMAT = "joulie-ledger-2"


class EntryKind(StrEnum):
    """What an entry says."""

    BOOKED = "booked"
    """Energy of a workload in a UTC day, as it was first known."""
    FACTOR = "factor"
    """A factor that became known late or was wrong: who changed it, when, why, from what, to what. No energy."""
    CORRECTION = "correction"
    """What that changed in the account of a workload: differences, to be added."""
    EMBODIED = "embodied"
    """What a workload has reserved of some hardware in a UTC day, with its embodied emissions. No energy."""
    UNITS = "functional-units"
    """What a workload has delivered in a UTC day, in its functional unit. No energy."""
    PUE = "pue"
    """A PUE that energy of a zone was booked on in a UTC day, with its source. No energy."""
    CLOSING = "closing"
    """A month that nothing is booked in any more, with its signature. No energy."""


COUNTED_KINDS = frozenset({EntryKind.BOOKED, EntryKind.CORRECTION})
"""Kinds of entries with energy."""
REPORTED_KINDS = COUNTED_KINDS | {EntryKind.EMBODIED, EntryKind.UNITS, EntryKind.PUE}
"""Kinds of entries that figures of a month are made of."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry. Times are s since the epoch.

    Attributes:
        number: 1 of the first one, without gaps.
        kind: what it says.
        recorded_s: when it was written.
        from_s: start of the time that it is counted in.
        until_s: end of that time; a whole hour or UTC day.
        concerns_s: start of the time that it is about: before `from_s` if that month was closed already.
        namespace: of the workload; empty for what nodes draw for nobody, and without energy.
        owner_kind: of the workload.
        owner_name: of the workload.
        zone: of the grid.
        note: JSON object with what else there is to say; see `correction_note` and `closing_note`.
        energy: of the workload, or the difference.
        hash: of this entry and all before it, SHA-256 in hexadecimal.
    """

    number: int
    kind: EntryKind
    recorded_s: float
    from_s: float
    until_s: float
    concerns_s: float
    namespace: str
    owner_kind: str
    owner_name: str
    zone: str
    note: str
    energy: Energy
    hash: str


ENTRY_FIELDS = tuple(one.name for one in fields(Entry) if one.name not in {"energy", "hash"})


def chained(before: str, entry: Entry) -> str:
    """The hash of an entry after the one with the hash `before`."""
    content = [*(getattr(entry, name) for name in ENTRY_FIELDS), *astuple(entry.energy)]
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return hashlib.sha256((before + text).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Reason:
    """Who changed a factor, and why.

    Attributes:
        who: a person, or the program.
        why: in words.
    """

    who: str
    why: str


@dataclass(frozen=True, slots=True)
class FactorChange:
    """A factor of the past that has another value now.

    Attributes:
        kind: which factor: a `joulie.domain.accounting.factors.FactorKind`.
        zone: of the grid.
        from_s: start of its time, s since the epoch.
        until_s: end of its time, s since the epoch.
        was: value until now; None: unknown.
        becomes: value from now on.
        who: who changed it.
        why: why.
    """

    kind: str
    zone: str
    from_s: float
    until_s: float
    was: float | None
    becomes: float
    who: str
    why: str

    def note(self) -> str:
        """As the note of an entry."""
        return _json({name: getattr(self, name) for name in self.__slots__})


@dataclass(frozen=True, slots=True)
class Correction:
    """A correction of the account of a workload, as it is reported.

    Attributes:
        entry: the entry with the difference.
        changes: the factors that caused it.
    """

    entry: Entry
    changes: tuple[FactorChange, ...]


class Signer(Protocol):
    """A private key."""

    @property
    def public_key(self) -> str:
        """The public key, as text that `Verify` takes."""
        ...

    def sign(self, message: bytes) -> str:
        """The signature of a message, as text."""
        ...


class Verify(Protocol):
    """Checks a signature."""

    def __call__(self, public_key: str, message: bytes, signature: str) -> bool:
        """Whether a signature of a message is that of a key."""
        ...


@dataclass(frozen=True, slots=True)
class Month:
    """A calendar month of UTC.

    Attributes:
        year: of the calendar.
        month: from 1.
    """

    year: int
    month: int

    @classmethod
    def parse(cls, text: str) -> Month:
        """A month as ``2026-10``.

        Raises:
            ValueError: written otherwise.
        """
        try:
            return cls.of(datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC).timestamp())
        except ValueError:
            raise ValueError(f"invalid month {text!r}: write it like 2026-10") from None

    @classmethod
    def of(cls, time_s: float) -> Month:
        """The month of a time, s since the epoch."""
        day = datetime.fromtimestamp(time_s, UTC)
        return cls(day.year, day.month)

    @property
    def starts_s(self) -> float:
        """Its first moment, s since the epoch."""
        return datetime(self.year, self.month, 1, tzinfo=UTC).timestamp()

    @property
    def ends_s(self) -> float:
        """The first moment after it, s since the epoch."""
        return self.starts_s + monthrange(self.year, self.month)[1] * 86400.0

    def __str__(self) -> str:
        return f"{self.year:04}-{self.month:02}"


def closing_note(month: Month, number: int, before: str, signer: Signer) -> str:
    """The note of the entry that closes a month: its signature covers all entries before it."""
    message = _signed_message(str(month), number, before)
    return _json({"month": str(month), "public_key": signer.public_key, "signature": signer.sign(message)})


@dataclass(frozen=True, slots=True)
class Broken:
    """The first entry that is not what it should be.

    Attributes:
        number: of the entry.
        problem: what is wrong.
    """

    number: int
    problem: str


@dataclass(frozen=True, slots=True)
class Verified:
    """What a check of the journal has found.

    Attributes:
        entries: number of entries that are sound.
        head: hash of the last one of them.
        months: closed months, in order.
        keys: public keys that signed them.
        broken: the first unsound entry; None where all are sound.
    """

    entries: int
    head: str
    months: tuple[str, ...]
    keys: frozenset[str]
    broken: Broken | None = None


def verify_journal(
    entries: Iterable[Entry],
    verify: Verify,
    *,
    pruned: tuple[int, str] = (0, GENESIS),
    public_key: str | None = None,
    published: Mapping[int, str] | None = None,
) -> Verified:
    """Check the hash chain, the signatures of closed months, and that nothing was booked in them afterwards.

    Args:
        entries: all entries, in order.
        verify: checks a signature.
        pruned: number and hash of the last entry that is kept no more.
        public_key: the only key that may have signed; None: any.
        published: hashes by number as they were published outside of the ledger.
    """
    number, head = pruned
    months: list[Month] = []
    keys: set[str] = set()
    count = 0
    missing = dict(published or {})

    def result(broken: Broken | None) -> Verified:
        return Verified(count, head, tuple(str(one) for one in months), frozenset(keys), broken)

    for entry in entries:
        number += 1
        problem = _problem(entry, number, head, months, verify, public_key)
        expected = missing.pop(number, entry.hash)
        if problem is None and expected != entry.hash:
            problem = "its hash is not the published one: entries were replaced"
        if problem is not None:
            return result(Broken(number, problem))
        if entry.kind is EntryKind.CLOSING:
            note = json.loads(entry.note)
            months.append(Month.parse(note["month"]))
            keys.add(note["public_key"])
        head, count = entry.hash, count + 1
    absent = min((one for one in missing if one > pruned[0]), default=None)
    if absent is not None:
        return result(Broken(absent, "it was published and is not in the ledger: entries were removed"))
    return result(None)


def _problem(
    entry: Entry, number: int, head: str, months: list[Month], verify: Verify, public_key: str | None
) -> str | None:
    """What is wrong with an entry; None if it is sound."""
    if entry.number != number:
        return f"number {number} is missing"
    if chained(head, entry) != entry.hash:
        return "its content does not have its hash: it was changed, or the entry before it was"
    if entry.kind in REPORTED_KINDS and months and entry.from_s < months[-1].ends_s:
        return f"it is booked in {Month.of(entry.from_s)}, which was closed before"
    return _closing_problem(entry, head, verify, public_key) if entry.kind is EntryKind.CLOSING else None


def _closing_problem(entry: Entry, head: str, verify: Verify, public_key: str | None) -> str | None:
    note = json.loads(entry.note)
    month, key = note["month"], note["public_key"]
    if public_key is not None and key != public_key:
        return f"{month} was closed with another key than the one given"
    if not verify(key, _signed_message(month, entry.number, head), note["signature"]):
        return f"the signature of {month} is invalid"
    return None


def corrections(entries: Iterable[Entry]) -> Iterator[Correction]:
    """All corrections of a journal with the factor changes that caused them, which stand right before them."""
    changes: list[FactorChange] = []
    corrected = False
    for entry in entries:
        if entry.kind is EntryKind.FACTOR:
            changes = [] if corrected else changes
            changes.append(FactorChange(**json.loads(entry.note)))
            corrected = False
        elif entry.kind is EntryKind.CORRECTION:
            corrected = True
            yield Correction(entry, tuple(changes))


def _signed_message(month: str, number: int, before: str) -> bytes:
    return f"{_FORMAT} {month} {number} {before}".encode()


def _json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
