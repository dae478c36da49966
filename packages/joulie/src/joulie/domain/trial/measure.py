"""What the nodes of a trial did in each block: energy by their meters, and work by the pods that they completed.

Work is what pods completed, never the time that they held cores or GPUs: a job that a limit slows holds them longer.
A completed pod counts in proportion to what it did within a block. Of a pod that ran under both arms that is not its
time: under treatment an hour of it did less. By how much is known from the pods that ran under one arm alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from joulie.domain.recording import Exit, NodeRecord, PodRecord
from joulie.domain.trial.estimate import NodeBlock
from joulie.domain.trial.guard import EndedPod, slowdown
from joulie.domain.trial.protocol import Arm, Block, Protocol, arms
from joulie.domain.units import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Metered:
    """Measured power of nodes.

    Attributes:
        nodes: their records.
        start_s: start of the first step, s since the epoch.
        step_s: length of a step, s.
        power_w: mean power, W, shape ``(n_nodes, n_steps)``; NaN where no meter told it.
    """

    nodes: Sequence[NodeRecord]
    start_s: float
    step_s: float
    power_w: FloatArray

    @property
    def mean_w(self) -> FloatArray:
        """Mean measured power of each node, W; 0 where it was never measured."""
        known: IntArray = (~np.isnan(self.power_w)).sum(axis=1)
        return np.asarray(np.nansum(self.power_w, axis=1) / np.maximum(known, 1))

    def steps_within(self, from_s: float, until_s: float) -> slice | None:
        """The whole steps of a span of time; None if not all of it was recorded."""
        first = math.ceil((from_s - self.start_s) / self.step_s - 1e-9)
        last = math.floor((until_s - self.start_s) / self.step_s + 1e-9)
        return slice(first, last) if 0 <= first < last <= self.power_w.shape[1] else None


@dataclass(frozen=True)
class Measured:
    """What was measured, as `evaluate` takes it.

    Attributes:
        blocks: energy and work of each node in each block that was recorded.
        joules_per_unit: weight of a completed pod, by owner.
        both_arms: share of the weighted work by pods that ran under both arms.
        slowdown: by which share pods ran longer on enforced nodes, which pods under both arms are counted by; 0 where
            too few pods ran under one arm alone to tell.
        enforced: share of the weighted work that was done on enforced nodes.
        uncounted_owners: number of owners whose pods completed in one arm only, which are not counted as work.
    """

    blocks: tuple[NodeBlock, ...]
    joules_per_unit: Mapping[str, float]
    both_arms: float
    slowdown: float
    enforced: float
    uncounted_owners: int


@dataclass(frozen=True)
class _Done:
    """Part of a completed pod that falls into measured time of a block."""

    node: str
    block: int
    owner: str
    arm: Arm
    units: float
    both_arms: bool


class _Calendar:
    """The blocks of a trial, and the steps of a recording that are measured in each."""

    def __init__(self, protocol: Protocol, metered: Metered) -> None:
        self._blocks = list(protocol.blocks())
        self._block_s = protocol.block_s
        self._first_half = frozenset(protocol.first_half)
        self._metered = metered
        found = {one.index: metered.steps_within(one.measured_from_s, one.end_s) for one in self._blocks}
        self.steps = {index: steps for index, steps in found.items() if steps is not None}

    def under_one_arm(self, pod: PodRecord) -> EndedPod | None:
        """A completed pod that ran within the trial and under one arm alone; None for any other."""
        from_s, until_s = _span(pod)
        arms_of = {self._arm(block, pod.node or "") for block in self._during(from_s, until_s)}
        if len(arms_of) != 1 or from_s < self._blocks[0].start_s or until_s > self._blocks[-1].end_s:
            return None
        return EndedPod(owner_of(pod), arms_of.pop(), until_s - from_s, failed=False)

    def parts(self, pod: PodRecord, slower: float) -> Iterator[_Done]:
        """What a completed pod did in the measured time of each block.

        Args:
            pod: the pod.
            slower: by which share pods run longer on treated nodes. Time outside the trial counts as untreated.
        """
        from_s, until_s = _span(pod)
        node = pod.node or ""
        during = [(block, self._arm(block, node)) for block in self._during(from_s, until_s)]
        rate = {Arm.TREATMENT: 1.0 / (1.0 + slower), Arm.CONTROL: 1.0}
        treated_s = math.fsum(
            min(until_s, block.end_s) - max(from_s, block.start_s) for block, arm in during if arm is Arm.TREATMENT
        )
        whole_s = until_s - from_s - treated_s + treated_s * rate[Arm.TREATMENT]
        both = len({arm for _, arm in during}) > 1
        for block, arm in during:
            steps = self.steps.get(block.index)
            within_s = 0.0 if steps is None else self._overlap_s(steps, from_s, until_s)
            if within_s > 0.0:
                yield _Done(node, block.index, owner_of(pod), arm, within_s * rate[arm] / whole_s, both)

    def _during(self, from_s: float, until_s: float) -> Sequence[Block]:
        begin_s = self._blocks[0].start_s
        first = math.floor((from_s - begin_s) / self._block_s)
        last = math.ceil((until_s - begin_s) / self._block_s)
        return self._blocks[max(first, 0) : max(last, 0)]

    def _overlap_s(self, steps: slice, from_s: float, until_s: float) -> float:
        start_s, step_s = self._metered.start_s, self._metered.step_s
        return float(min(until_s, start_s + steps.stop * step_s) - max(from_s, start_s + steps.start * step_s))

    def _arm(self, block: Block, node: str) -> Arm:
        first, second = arms(block.treated)
        return first if node in self._first_half else second


def measure(protocol: Protocol, pods: Iterable[PodRecord], metered: Metered) -> Measured:
    """Energy and work by node and block.

    An owner counts whose pods completed under both arms. A completed pod of it weighs the energy of its node by the
    larger of its shares of cores and GPUs, on average over all of its owner's completed pods: the same for both arms.

    Args:
        protocol: the protocol.
        pods: pods that were recorded; those that did not succeed have done no work.
        metered: measured power.
    """
    index = {node.node: place for place, node in enumerate(metered.nodes)}
    names = [name for name in (*protocol.first_half, *protocol.second_half) if name in index]
    calendar = _Calendar(protocol, metered)
    taking_part = set(names)
    completed = [pod for pod in pods if _completed(pod) and pod.node in taking_part]
    alone = slowdown([ended for pod in completed if (ended := calendar.under_one_arm(pod)) is not None])
    slower = 0.0 if alone is None else alone.value
    done = [part for pod in completed for part in calendar.parts(pod, slower)]
    weights = _weights(completed, metered, index)
    under: defaultdict[str, set[Arm]] = defaultdict(set)
    for one in done:
        under[one.owner].add(one.arm)
    counted = {owner: weights[owner] for owner, seen in under.items() if len(seen) == 2 and weights[owner] > 0.0}
    work: defaultdict[tuple[str, int], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for one in done:
        work[one.node, one.block][one.owner] += one.units
    blocks = [
        NodeBlock(name, block, _energy_j(metered, index[name], steps), dict(work.get((name, block), {})))
        for block, steps in calendar.steps.items()
        for name in names
    ]
    total_j = math.fsum(one.units * counted[one.owner] for one in done if one.owner in counted)

    def share(those: Iterable[_Done]) -> float:
        return math.fsum(one.units * counted.get(one.owner, 0.0) for one in those) / total_j if total_j else 0.0

    return Measured(
        tuple(blocks),
        counted,
        both_arms=share(one for one in done if one.both_arms),
        slowdown=slower,
        enforced=share(one for one in done if one.arm is Arm.TREATMENT),
        uncounted_owners=len(under) - len(counted),
    )


def owner_of(pod: PodRecord) -> str:
    """The workload of a pod; a pod without one is its own."""
    kind, name = (pod.owner_kind, pod.owner_name) if pod.owner_name else ("Pod", pod.name)
    return f"{pod.namespace}/{kind}/{name}"


def _span(pod: PodRecord) -> tuple[float, float]:
    """From when until when a completed pod ran, s since the epoch."""
    assert pod.started_s is not None
    assert pod.ended_s is not None
    return pod.started_s, pod.ended_s


def _completed(pod: PodRecord) -> bool:
    ran = pod.started_s is not None and pod.ended_s is not None and pod.ended_s > pod.started_s
    return ran and pod.exit == Exit.SUCCEEDED and pod.node is not None


def _energy_j(metered: Metered, node: int, steps: slice) -> float | None:
    power_w = metered.power_w[node, steps]
    return None if np.isnan(power_w).any() else float(power_w.sum()) * metered.step_s


def _weights(pods: Sequence[PodRecord], metered: Metered, index: Mapping[str, int]) -> Mapping[str, float]:
    """Mean energy of a completed pod by owner, J: its part of its node's mean power while it ran."""
    mean_w = metered.mean_w
    energies: defaultdict[str, list[float]] = defaultdict(list)
    for pod in pods:
        place = index[pod.node or ""]
        length_s = (pod.ended_s or 0.0) - (pod.started_s or 0.0)
        energies[owner_of(pod)].append(_share(pod, metered.nodes[place]) * float(mean_w[place]) * length_s)
    return {owner: math.fsum(one) / len(one) for owner, one in energies.items()}


def _share(pod: PodRecord, node: NodeRecord) -> float:
    cores = (pod.cpu_cores or 0.0) / node.cores if node.cores else 0.0
    gpus = (pod.gpus or 0.0) / node.gpus if node.gpus else 0.0
    return min(max(cores, gpus), 1.0)
