"""Commands of a decision about sleep, and the check before each is carried out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from joulie.domain.sleep.snapshot import SleepNode
from joulie.domain.sleep.states import Cordoned, Emptying, SleepState, state_of


class Action(StrEnum):
    """What is to be done with a node."""

    EMPTY = "empty"
    """Close it to pods, to move those that it has."""
    CORDON = "cordon"
    UNCORDON = "uncordon"
    POWER_OFF = "powerOff"
    POWER_ON = "powerOn"
    GIVE_UP = "giveUp"


class Command(NamedTuple):
    """One thing to do."""

    action: Action
    node: str
    reason: str


class Move(NamedTuple):
    """A pod that is to leave a node that is emptied.

    Attributes:
        pod: its namespace and name.
        node: the node that it leaves.
        target: a node that has room for it; kube-scheduler chooses in the end.
    """

    pod: str
    node: str
    target: str


@dataclass(frozen=True)
class SleepDecision:
    """A decision.

    Attributes:
        states: state of each node once the commands are carried out.
        commands: what is to be done, in this order.
        waits: why each pending pod waits, by its name.
        held: pods that wait because nodes sleep, are waking or did not wake; the others wait for kube-scheduler, or in
            vain.
        wanted: nodes that wake as soon as power budgets have made room for them. All of them fit if others give.
        ahead: nodes that are awake or wake for pods that are only expected.
        moves: pods to evict now.
    """

    states: Mapping[str, SleepState]
    commands: tuple[Command, ...]
    waits: Mapping[str, str]
    held: frozenset[str] = frozenset()
    wanted: frozenset[str] = frozenset()
    ahead: frozenset[str] = frozenset()
    moves: tuple[Move, ...] = ()


class Remembered(NamedTuple):
    """What a process remembers of a node: a state, and the mark that it went with."""

    mark: str
    state: SleepState


def recalled(remembered: Remembered | None, mark: str, *, tainted: bool, now_s: float) -> SleepState:
    """The state of a node: what is remembered where it goes with the mark, else what the mark says.

    The mark is the truth, since the process may have been another one a moment ago. What is remembered adds what no
    mark has: since when a node is empty, and for how many looks a cordoned one has been quiet.
    """
    if remembered is not None and remembered.mark == mark:
        return remembered.state
    return state_of(mark, tainted=tainted, now_s=now_s)


def still_holds(command: Command, seen: SleepNode, node: SleepNode | None) -> bool:
    """Whether a command may be carried out on the node as it is now: no pod loses its node, and no node its mark.

    Args:
        command: the command.
        seen: the node as the decision saw it.
        node: as just read; None if it is gone.
    """
    if node is None or node.mark != seen.mark:
        return False
    if command.action is Action.EMPTY:
        return node.ready and not node.keep
    if command.action in {Action.CORDON, Action.POWER_OFF}:
        return node.jobs == 0 and not node.keep
    if command.action is Action.UNCORDON:
        # A node that an old view shows as ready may be off: without its mark nobody would wake it again.
        return node.ready or isinstance(seen.state, Emptying | Cordoned) or not node.switchable
    return True
