"""The protocol of a trial: which nodes form which half, and which half is treated when.

A trial is a randomised switchback. Its nodes form two halves, matched by hardware family and load. Time is cut into
blocks, and blocks into pairs: in one block of a pair one half is treated, in the other block the other half, in random
order. So both arms see the same hours, and each half is compared with itself. Some pairs treat all nodes in one block
and none in the other: what differs there from the rest is interference between the halves.

The draw is fixed before the first block and is a function of the seed, so that anybody can draw it again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

MIN_PAIRS = 12
"""Independent assignments that a trial needs at least; below six there is no 95 % interval at all (2 / 2^5 > 5 %)."""


class Judged(StrEnum):
    """What a trial judges."""

    ENFORCEMENT = "enforcement"
    """Of limits and placement, by nodes."""
    DEFERRAL = "deferral"
    """Of workloads that ask to wait, by workloads; see `joulie.domain.trial.workloads`."""


class Arm(StrEnum):
    """How a node is run during a block, or a workload during a trial."""

    CONTROL = "control"
    TREATMENT = "treatment"


class Treated(StrEnum):
    """What is treated in a block."""

    FIRST_HALF = "first"
    SECOND_HALF = "second"
    ALL = "all"
    NONE = "none"


_OPPOSITE = {
    Treated.FIRST_HALF: Treated.SECOND_HALF,
    Treated.SECOND_HALF: Treated.FIRST_HALF,
    Treated.ALL: Treated.NONE,
    Treated.NONE: Treated.ALL,
}
WHOLE = (Treated.ALL, Treated.NONE)
"""Treatments of blocks that make no difference between the halves."""


@dataclass(frozen=True)
class Block:
    """A span of time under one assignment; measured from ``measured_from_s``, after the washout, to ``end_s``."""

    index: int
    start_s: float
    measured_from_s: float
    end_s: float
    treated: Treated

    @property
    def pair(self) -> int:
        """Index of the block's pair."""
        return self.index // 2


@dataclass(frozen=True)
class Protocol:
    """What a trial does, fixed before it starts.

    Attributes:
        start_s: start of the first block, s since the epoch.
        block_s: length of a block, s.
        washout_s: beginning of each block that is not measured, s.
        first_half: names of the nodes of the first half, sorted.
        second_half: names of the nodes of the second half, sorted.
        left_out: names of the nodes without a partner, which stay as they are.
        order: what is treated in the first block of each pair; in its second block it is the opposite.
        seed: seed of the draw.
    """

    start_s: float
    block_s: float
    washout_s: float
    first_half: tuple[str, ...]
    second_half: tuple[str, ...]
    left_out: tuple[str, ...]
    order: tuple[Treated, ...]
    seed: int

    @property
    def end_s(self) -> float:
        """End of the last block, s since the epoch."""
        return self.start_s + 2 * len(self.order) * self.block_s

    def blocks(self) -> Iterator[Block]:
        """All blocks in order of time."""
        return (self._block(index) for index in range(2 * len(self.order)))

    def block_at(self, now_s: float) -> Block | None:
        """The block in force; None before the first and after the last."""
        if not self.start_s <= now_s < self.end_s:
            return None
        return self._block(int((now_s - self.start_s) // self.block_s))

    def arms_at(self, now_s: float) -> Mapping[str, Arm]:
        """Arm of each node of the trial; empty when no block is in force."""
        block = self.block_at(now_s)
        if block is None:
            return {}
        first, second = arms(block.treated)
        return dict.fromkeys(self.first_half, first) | dict.fromkeys(self.second_half, second)

    def _block(self, index: int) -> Block:
        first = self.order[index // 2]
        start_s = self.start_s + index * self.block_s
        treated = first if index % 2 == 0 else _OPPOSITE[first]
        return Block(index, start_s, start_s + self.washout_s, start_s + self.block_s, treated)


def arms(treated: Treated) -> tuple[Arm, Arm]:
    """Arms of the first and of the second half."""
    return (
        Arm.TREATMENT if treated in (Treated.FIRST_HALF, Treated.ALL) else Arm.CONTROL,
        Arm.TREATMENT if treated in (Treated.SECOND_HALF, Treated.ALL) else Arm.CONTROL,
    )
