"""Keeps the evidence of holdouts in the ledger: that of deferral, and a copy of the operator's of GPU limits.

What is spoilt is reported and begun anew: it never counts as a saving of zero.
"""

from __future__ import annotations

import logging

import msgspec

from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError, NotFoundError
from joulie.adapters.kubernetes.holdout import CONFIG_MAP, read_holdout
from joulie.apps.accounting.async_ledger import AsyncLedger
from joulie.apps.accounting.holdout import DeferralHoldout, DeferralMemory
from joulie.domain.accounting.holdout_evidence import NO_MONTHS, EvidenceByMonth
from joulie.domain.accounting.month_savings import (
    DEFERRAL_EVIDENCE,
    DEFERRAL_MEMORY,
    LIMITS_EVIDENCE,
    read_evidence,
)

_log = logging.getLogger(__name__)


class Holdouts:
    """Evidence of both holdouts.

    Args:
        client: Kubernetes client.
        ledger: energy ledger.
        namespace: namespace of the operator's ConfigMap.

    Attributes:
        deferral: what completed pods say about waiting.
        limits: what windows say about limits of GPUs.
        problems: what was spoilt since this program runs.
    """

    def __init__(self, client: KubeClient, ledger: AsyncLedger, namespace: str) -> None:
        self.deferral = DeferralHoldout()
        self.limits = NO_MONTHS
        self.problems: list[str] = []
        self._client = client
        self._ledger = ledger
        self._namespace = namespace
        self._kept: dict[str, str] | None = None

    @property
    def evidence(self) -> dict[str, EvidenceByMonth]:
        """Evidence by its name in the ledger."""
        return {LIMITS_EVIDENCE: self.limits, DEFERRAL_EVIDENCE: self.deferral.evidence}

    async def load(self) -> None:
        """Read what was kept, once; before the first pod is taken in.

        Raises:
            LedgerError: the ledger cannot be read.
        """
        if self._kept is not None:
            return
        texts = await self._ledger.call(lambda ledger: ledger.texts())
        found, problems = read_evidence(texts)
        self.deferral.evidence = found.get(DEFERRAL_EVIDENCE, NO_MONTHS)
        self.limits = found.get(LIMITS_EVIDENCE, NO_MONTHS)
        if DEFERRAL_MEMORY in texts:
            try:
                self.deferral.restore(msgspec.json.decode(texts[DEFERRAL_MEMORY], type=DeferralMemory))
            except (msgspec.DecodeError, ValueError) as error:
                problems.append(f"what outcomes of the holdout are compared to cannot be read: {error}")
        for problem in problems:
            self._spoilt(problem)
        self._kept = dict(texts)

    async def keep(self) -> None:
        """Keep what is new.

        Raises:
            LedgerError: the ledger cannot be written.
        """
        if self._kept is None:
            return
        memory = msgspec.json.encode(self.deferral.memory).decode()
        texts = {name: one.text() for name, one in self.evidence.items() if one} | {DEFERRAL_MEMORY: memory}
        new = {name: text for name, text in texts.items() if self._kept.get(name) != text}
        if new:
            await self._ledger.call(lambda ledger: ledger.keep(new))
            self._kept |= new

    async def copy_limits(self) -> None:
        """Copy what the operator knows, if it keeps any."""
        try:
            text = (await read_holdout(self._client, self._namespace)).text
            self.limits = self.limits.updated(NO_MONTHS if text is None else EvidenceByMonth.parse(text))
        except NotFoundError:
            return  # the operator keeps none
        except KubernetesError as error:
            _log.info("evidence of the operator's holdout not read", extra={"error": str(error)})
        except ValueError as error:
            self._spoilt(f"ConfigMap {CONFIG_MAP}: {error}")

    def _spoilt(self, problem: str) -> None:
        if problem not in self.problems:
            _log.error("evidence of a holdout is spoilt", extra={"problem": problem})
            self.problems = [*self.problems[-9:], problem]
