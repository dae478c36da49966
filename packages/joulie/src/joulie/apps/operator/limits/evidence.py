"""Evidence of the holdouts of all workloads, which a ConfigMap keeps over restarts and changes of leader.

What is new is added to what is read and written under the version that was read. So of two leaders neither overwrites
the other's windows; and a write whose answer was lost is found by its name, and is not repeated.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable

from joulie.adapters.kubernetes.api.meta import ObjectReference
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.errors import KubernetesError, NotFoundError
from joulie.adapters.kubernetes.events import EventRecorder
from joulie.adapters.kubernetes.holdout import CONFIG_MAP, StoredEvidence, read_holdout, write_holdout
from joulie.adapters.kubernetes.resources import CONFIG_MAPS
from joulie.domain.accounting.holdout_evidence import NO_MONTHS, EvidenceByMonth
from joulie.domain.trial.holdout import NO_EVIDENCE, Effect, Evidence

SAVE_S = 300.0
"""Interval at which evidence is kept; an operator that is killed loses as much at most."""

_log = logging.getLogger(__name__)


class KeptEvidence:
    """Evidence of the windows of all workloads.

    Args:
        client: Kubernetes client.
        events: recorder of events on the ConfigMap.
        namespace: its namespace.
        may_write: whether this process still holds the lease.
    """

    def __init__(
        self, client: KubeClient, events: EventRecorder, namespace: str, may_write: Callable[[], bool]
    ) -> None:
        self._client = client
        self._events = events
        self._namespace = namespace
        self._may_write = may_write
        self._kept: EvidenceByMonth | None = None
        self._writing = NO_MONTHS
        self._new = NO_MONTHS
        self._writer = ""
        self._saved_s = 0.0

    @property
    def now(self) -> Evidence:
        """What is known; nothing until what was kept has been read."""
        return NO_EVIDENCE if self._kept is None else (self._kept + self._writing + self._new).now

    def add(self, time_s: float, effect: Effect) -> None:
        """Take a window in that ended at a time, s since the epoch."""
        self._new = self._new.added(time_s, effect)

    async def keep(self, now_s: float) -> None:
        """Read what was kept, once, and keep what is new from time to time. A failure is logged, and tried again."""
        try:
            if self._kept is None:
                self._kept = self._read(await read_holdout(self._client, self._namespace))
                self._saved_s = now_s
            elif (self._new or self._writing) and abs(now_s - self._saved_s) >= SAVE_S:
                self._saved_s = now_s
                await self._save()
        except NotFoundError:
            self._kept, self._saved_s = self._kept or NO_MONTHS, now_s
            _log.warning("evidence of the holdout is not kept: ConfigMap is missing", extra={"config_map": CONFIG_MAP})
        except KubernetesError as error:
            _log.warning("evidence of the holdout not kept yet", extra={"error": str(error)})

    async def _save(self) -> None:
        stored = await read_holdout(self._client, self._namespace)
        kept = self._read(stored)
        if stored.writer and stored.writer == self._writer:
            self._writing = NO_MONTHS  # it had been written, only the answer was lost
        self._kept, self._writing, self._new = kept, self._writing + self._new, NO_MONTHS
        if not (self._writing and self._may_write()):
            return
        self._writer = uuid.uuid4().hex
        whole = kept + self._writing
        await write_holdout(self._client, self._namespace, whole.text(), self._writer, stored.version)
        self._kept, self._writing = whole, NO_MONTHS

    def _read(self, stored: StoredEvidence) -> EvidenceByMonth:
        """What is stored; what this process knows of it where that is gone, or spoilt, which is reported."""
        if stored.text is None:
            return self._kept or NO_MONTHS
        try:
            return EvidenceByMonth.parse(stored.text)
        except ValueError as error:
            anew = "begun anew" if self._kept is None else "what this leader has read of it is kept"
            message = f"{error}; {anew}"
            _log.error("evidence of the holdout is spoilt", extra={"config_map": CONFIG_MAP, "error": message})
            about = ObjectReference(CONFIG_MAPS.kind, CONFIG_MAP, CONFIG_MAPS.api_version, self._namespace, stored.uid)
            self._events.emit(about, "Warning", "HoldoutEvidenceSpoilt", message)
            return self._kept or NO_MONTHS
