"""What the nodes of a trial did in each block: energy by their meters, and work by the pods that ran on them.

Work is what pods counted themselves (`joulie.domain.trial.progress`), else what they completed, never the time that
they held cores or GPUs: a job that a limit slows holds them longer. A completed pod counts in proportion to what it did
within a block. Of a pod that ran under both arms that is not its time: under treatment an hour of it did less. By how
much is known from the pods that ran under one arm alone.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np

from joulie.domain.recording import Exit, NodeRecord, PodRecord
from joulie.domain.trial.estimate import NodeBlock
from joulie.domain.trial.guard import EndedPod, slowdown
from joulie.domain.trial.progress import Course, Stay, Unit, joules_per_unit, unit_of
from joulie.domain.trial.protocol import Arm, Block, Protocol, arms
from joulie.domain.units import FloatArray, IntArray
from joulie.domain.usage import PodKey


@dataclass(frozen=True, eq=False)
class Metered:
    """Measured power of nodes, and progress of pods.

    Attributes:
        nodes: their records.
        start_s: start of the first step, s since the epoch.
        step_s: length of a step, s.
        power_w: mean power, W, shape ``(n_nodes, n_steps)``; NaN where no meter told it.
        progress: growth of the progress metric of pods that name one.
    """

    nodes: Sequence[NodeRecord]
    start_s: float
    step_s: float
    power_w: FloatArray
    progress: Mapping[PodKey, Course] = field(default_factory=dict)

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
        joules_per_unit: weight of a unit of work, by owner: of its progress metric, or a completed pod.
        units: what the work of each owner is counted by.
        both_arms: share of the weighted work by completed pods that ran under both arms; progress counts where it was
            made.
        slowdown: by which share pods ran longer on enforced nodes, which pods under both arms are counted by; 0 where
            too few pods ran under one arm alone to tell.
        enforced: share of the weighted work that was done on enforced nodes.
        uncounted_owners: number of owners that did work in one arm only, which is not counted.
    """

    blocks: tuple[NodeBlock, ...]
    joules_per_unit: Mapping[str, float]
    units: Mapping[str, Unit]
    both_arms: float
    slowdown: float
    enforced: float
    uncounted_owners: int


@dataclass(frozen=True)
class _Done:
    """Work of a pod in the measured time of a block."""

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

    def stays(self, pod: PodRecord, span: tuple[float, float]) -> Iterator[tuple[Block, Arm, float, float]]:
        """Block, arm, and from when until when, steps, a pod ran in the measured time of each block."""
        node, start_s, step_s = pod.node or "", self._metered.start_s, self._metered.step_s
        first, last = ((at_s - start_s) / step_s for at_s in span)
        for block in self._during(*span):
            steps = self.steps.get(block.index)
            if steps is not None and max(first, steps.start) < min(last, steps.stop):
                yield block, self._arm(block, node), max(first, steps.start), min(last, steps.stop)

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

    An owner counts that did work under both arms. A completed pod of it weighs the energy of its node by the larger of
    its shares of cores and GPUs, on average over all of its owner's completed pods: the same for both arms. So does a
    unit of progress.

    Args:
        protocol: the protocol.
        pods: pods that were recorded; those that did not succeed have done no work, except what they counted.
        metered: measured power and progress.
    """
    index = {node.node: place for place, node in enumerate(metered.nodes)}
    names = [name for name in (*protocol.first_half, *protocol.second_half) if name in index]
    calendar = _Calendar(protocol, metered)
    taking_part = set(names)
    there = [pod for pod in pods if pod.node in taking_part]
    completed = [pod for pod in there if _completed(pod)]
    energy_j = {
        (name, block): _energy_j(metered, index[name], steps)
        for block, steps in calendar.steps.items()
        for name in names
    }
    alone = slowdown([ended for pod in completed if (ended := calendar.under_one_arm(pod)) is not None])
    slower = 0.0 if alone is None else alone.value
    stays = _stays(there, metered, calendar, {key for key, value in energy_j.items() if value is not None})
    units = {owner: unit_of(own) for owner, own in stays.items()}
    by_progress = {owner: stays[owner] for owner, unit in units.items() if unit.metric}
    counted_pods = [pod for pod in completed if owner_of(pod) not in by_progress]
    done = [part for pod in counted_pods for part in calendar.parts(pod, slower)]
    done += [
        _Done(stay.node, stay.block, owner, stay.arm, stay.units, both_arms=False)
        for owner, own in by_progress.items()
        for stay in own
    ]
    weights = _weights(counted_pods, metered, index) | {
        owner: joules_per_unit(own) for owner, own in by_progress.items()
    }
    under: defaultdict[str, set[Arm]] = defaultdict(set)
    for one in done:
        under[one.owner].add(one.arm)
    counted = {owner: weights[owner] for owner, seen in under.items() if len(seen) == 2 and weights[owner] > 0.0}
    work: defaultdict[tuple[str, int], defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for one in done:
        work[one.node, one.block][one.owner] += one.units
    blocks = [
        NodeBlock(name, block, measured_j, dict(work.get((name, block), {})))
        for (name, block), measured_j in energy_j.items()
    ]
    total_j = math.fsum(one.units * counted[one.owner] for one in done if one.owner in counted)

    def share(those: Iterable[_Done]) -> float:
        return math.fsum(one.units * counted.get(one.owner, 0.0) for one in those) / total_j if total_j else 0.0

    return Measured(
        tuple(blocks),
        counted,
        {owner: units.get(owner, Unit()) for owner in under.keys() | units.keys()},
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


def _weights(pods: Sequence[PodRecord], metered: Metered, index: Mapping[str, int]) -> dict[str, float]:
    """Mean energy of a completed pod by owner, J: its part of its node's mean power while it ran."""
    mean_w = metered.mean_w
    energies: defaultdict[str, list[float]] = defaultdict(list)
    for pod in pods:
        place = index[pod.node or ""]
        length_s = (pod.ended_s or 0.0) - (pod.started_s or 0.0)
        energies[owner_of(pod)].append(_share(pod, metered.nodes[place]) * float(mean_w[place]) * length_s)
    return {owner: math.fsum(one) / len(one) for owner, one in energies.items()}


def _stays(
    pods: Sequence[PodRecord], metered: Metered, calendar: _Calendar, known: Set[tuple[str, int]]
) -> dict[str, list[Stay]]:
    """Stays of all pods of each owner of which a pod names a progress metric, in node-blocks of known energy."""
    naming = {owner_of(pod) for pod in pods if pod.progress_metric}
    of_name: defaultdict[PodKey, list[PodRecord]] = defaultdict(list)
    for pod in pods:
        if owner_of(pod) in naming and pod.started_s is not None:
            of_name[pod.namespace, pod.name].append(pod)
    joules_per_step = {
        node.node: (node, float(mean_w) * metered.step_s)
        for node, mean_w in zip(metered.nodes, metered.mean_w, strict=True)
    }
    found: defaultdict[str, list[Stay]] = defaultdict(list)
    for key, pods_of_name in of_name.items():
        for pod, span, course in _of_one_name(pods_of_name, metered.progress.get(key), metered):
            node, node_j = joules_per_step[pod.node or ""]
            metric, pod_j = pod.progress_metric or "", _share(pod, node) * node_j
            for block, arm, first, last in calendar.stays(pod, span):
                if (node.node, block.index) in known:
                    steps = last - first
                    grown, known_steps = course.over(first, last)
                    stay = Stay(node.node, block.index, arm, metric, steps, known_steps, grown, pod_j * steps)
                    found[owner_of(pod)].append(stay)
    return dict(found)


def _of_one_name(
    pods: Iterable[PodRecord], course: Course | None, metered: Metered
) -> Iterator[tuple[PodRecord, tuple[float, float], Course]]:
    """Pods that bore a name one after another, from when until when each ran, s, and its part of the name's progress.

    A pod without a known end ran until the next began, its last progress, or the end of the recording.
    """
    end_s = metered.start_s + metered.power_w.shape[1] * metered.step_s
    if course is None:
        course = Course(np.zeros(0, dtype=np.int64), np.zeros(0))
    elif len(course.steps):
        end_s = metered.start_s + (int(course.steps[-1]) + 1) * metered.step_s
    ordered = sorted(pods, key=lambda pod: pod.started_s or 0.0)
    taken = 0
    for place, pod in enumerate(ordered):
        later = ordered[place + 1].started_s if place + 1 < len(ordered) else None
        from_s = pod.started_s or 0.0
        until_s = pod.ended_s or (later if later is not None else max(end_s, from_s))
        last = max(math.ceil((until_s - metered.start_s) / metered.step_s - 1e-9), taken)
        yield pod, (from_s, until_s), course.between(taken, last)
        taken = last


def _share(pod: PodRecord, node: NodeRecord) -> float:
    cores = (pod.cpu_cores or 0.0) / node.cores if node.cores else 0.0
    gpus = (pod.gpus or 0.0) / node.gpus if node.gpus else 0.0
    return min(max(cores, gpus), 1.0)
