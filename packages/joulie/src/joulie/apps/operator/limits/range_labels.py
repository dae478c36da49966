"""Publishes the range of power limits of a node's NVIDIA GPUs as node labels, for planners that read them there.

The labels are those that NVIDIA proposes for its GPU feature discovery, which therefore goes first: server-side apply
without force leaves a label that anybody else has set, and gives up only what this field manager has set. Source:
https://github.com/NVIDIA/gpu-operator/issues/2780.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.errors import ConflictError, NotFoundError
from joulie.adapters.kubernetes.resources import NODES
from joulie.adapters.kubernetes.writer import write_all
from joulie.apps.operator.apply import Problem
from joulie.apps.operator.facts import NodeFacts
from joulie.apps.operator.leader import Leader
from joulie.domain.hardware.resolve import ReportedHardware

_NVIDIA = "nvidia"
_MILLI = 1e-3

Labels = Mapping[str, str]

_log = logging.getLogger(__name__)


def range_labels(hardware: ReportedHardware) -> Labels:
    """Labels of the range of one GPU's limit, mW; none without NVIDIA GPUs or where their driver states no range."""
    if hardware.gpu_vendor != _NVIDIA or not hardware.gpu_min_w or not hardware.gpu_max_w:
        return {}
    ends_w = (hardware.gpu_min_w, hardware.gpu_max_w)
    return {
        label: str(round(end_w / _MILLI)) for label, end_w in zip(names.GPU_LIMIT_RANGE_LABELS, ends_w, strict=True)
    }


class RangeLabels:
    """Keeps the labels of managed nodes in enforce mode; a new instance is made each time this replica leads.

    Args:
        leader: this replica while it leads.
    """

    def __init__(self, leader: Leader) -> None:
        self._client, self._view = leader.client, leader.view
        self._settings, self._may_write = leader.settings, leader.may_write
        # By node: its uid, the labels asked for and those that it had then. Nobody is asked twice for the same.
        self._settled: dict[str, tuple[str, Labels, Labels]] = {}

    async def publish(self) -> list[Problem]:
        """Write the labels that changed. Returns the nodes whose writes failed; the next cycle retries them."""
        hardware = {facts.node: facts.reported for facts in self._view.hardware.values()}
        nodes = dict(self._view.node_facts)
        self._settled = {name: settled for name, settled in self._settled.items() if name in nodes}
        jobs = {
            name: partial(self._write, name, facts, wanted)
            for name, facts in nodes.items()
            if self._is_due(name, facts, wanted := self._wanted(facts, hardware.get(name)))
        }
        failures = await write_all(jobs.values(), concurrency=self._settings.write_concurrency)
        return [Problem(list(jobs)[one.index], one.error) for one in failures]

    def _wanted(self, facts: NodeFacts, hardware: ReportedHardware | None) -> Labels:
        if not self._settings.gpu_range_labels or hardware is None or not (facts.managed and facts.enforced):
            return {}
        return range_labels(hardware)

    def _is_due(self, name: str, facts: NodeFacts, wanted: Labels) -> bool:
        """Whether the labels differ, and not because somebody else's were left.

        A node in observe mode is left alone, unless this process has labelled it before.
        """
        present = _present(facts.labels)
        before = self._settled.get(name)
        if present == wanted or before == (facts.uid, wanted, present):
            return False
        return bool(wanted) or facts.enforced or (before is not None and bool(before[1]))

    async def _write(self, name: str, facts: NodeFacts, wanted: Labels) -> None:
        if not self._may_write():
            return
        # With the uid, since an apply would create a node that was deleted.
        body = {"metadata": {"uid": facts.uid, "labels": wanted}}
        try:
            node = await self._client.apply(NODES, name, body, field_manager=names.GPU_RANGE_FIELD_MANAGER, force=False)
            present = _present(node.metadata.labels)
        except NotFoundError:
            return
        except ConflictError as error:
            present = _present(facts.labels)
            _log.info("GPU range labels of another writer are left", extra={"node": name, "problem": str(error)})
        self._settled[name] = (facts.uid, wanted, present)


def _present(labels: Labels) -> Labels:
    """The labels of the range among those of a node, whoever set them."""
    return {label: labels[label] for label in names.GPU_LIMIT_RANGE_LABELS if label in labels}
