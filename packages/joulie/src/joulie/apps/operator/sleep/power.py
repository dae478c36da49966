"""Power switches of the nodes that sleep.

What is wanted of a switch is read from the mark of its node: one that wakes is to be on, one that sleeps off. So an
operator that is killed between the mark and the switch, or a call that is lost, costs no more than one look.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import NamedTuple, Protocol

from joulie.adapters.kubernetes.writer import Job, write_all
from joulie.adapters.power_switches.file import NodeSwitch, SwitchFileError
from joulie.apps.operator.facts import NodeFacts
from joulie.apps.operator.sleep.metrics import SleepMetrics
from joulie.domain.sleep.states import Asleep, SleepState, Waking
from joulie.ports.power_switch import PowerState, PowerSwitchError
from joulie.program.leadership import NotLeadingError

FORCE_AFTER_S = 300.0
"""Time after which the power of a node that does not shut down is cut, where its switch may."""
RECHECK_S = 60.0
"""Time after which the switch of a node that is off is read again: others may switch it on."""
_OFF_STALE_S = 300.0
"""Time for which a node counts as off after its switch said so, while it does not answer."""
_TRIES = 3
"""How often a node is told to shut down where the switch does not accept it. One that accepts it is told once."""
_CONCURRENCY = 32

_log = logging.getLogger(__name__)


class Switches(Protocol):
    """Where the switches of nodes are found."""

    def reload(self) -> None:
        """Read them again, if they have changed. Raises `SwitchFileError`; those that were known stay."""
        ...

    def get(self, node: str) -> NodeSwitch | None:
        """The switch of a node; None if it has none."""
        ...

    async def aclose(self) -> None:
        """Close connections."""
        ...


class Sleeper(NamedTuple):
    """A node that sleeps or wakes, and has a switch.

    Attributes:
        name: its name.
        uid: its UID.
        state: state that its mark keeps.
    """

    name: str
    uid: str
    state: SleepState


class NodePower:
    """Switches nodes as their marks want it.

    Args:
        switches: the switches; None for none.
        metrics: metrics of sleep.
        still_empty: whether a node, as just read, has the mark of a state still, the boot that it names, and no pods.
        may_write: whether this process still holds the lease; checked before every call that switches.
        now_s: current time, s since the epoch.
    """

    def __init__(
        self,
        switches: Switches | None,
        metrics: SleepMetrics,
        still_empty: Callable[[str, Asleep], Awaitable[bool]],
        *,
        may_write: Callable[[], bool],
        now_s: Callable[[], float],
    ) -> None:
        self._switches = switches
        self._metrics = metrics
        self._still_empty = still_empty
        self._may_write = may_write
        self._now_s = now_s
        # By UID of the node.
        self._off: dict[str, float] = {}
        self._was_off: set[str] = set()
        self._tries: dict[str, int] = {}
        self._forced: set[str] = set()

    def reload(self) -> None:
        """Read the switches again, if they have changed; those that were known stay in force where that fails."""
        if self._switches is None:
            return
        try:
            self._switches.reload()
        except SwitchFileError as error:
            self._metrics.switch_errors.inc()
            _log.warning("power switches not read", extra={"error": str(error)})

    def switches(self, name: str, facts: NodeFacts) -> bool:
        """Whether a node is switched off when it sleeps, or may be off now and have to be switched on."""
        found = None if self._switches is None else self._switches.get(name)
        if found is None:
            return False
        if facts.sleep_mark and not facts.ready:
            return True
        return facts.power_switch == found.kind and facts.boot_id != ""

    async def check_on(self, name: str) -> None:
        """Check, before a node is marked as asleep, that its switch answers.

        Raises:
            PowerSwitchError: it does not, or says that the node is not on.
        """
        state = await self._of(name).switch.state()
        if state is not PowerState.ON:
            raise PowerSwitchError(f"the switch of {name} says {state}, and the node is ready")

    async def follow(self, sleepers: Iterable[Sleeper]) -> list[str]:
        """Have nodes be as their marks want them; returns the UIDs of those that were told to switch off.

        Raises:
            NotLeadingError: the lease was lost.
        """
        nodes = list(sleepers)
        asleep = {node.uid for node in nodes if isinstance(node.state, Asleep)}
        now_s = self._now_s()
        self._off = {uid: read_s for uid, read_s in self._off.items() if uid in asleep}
        self._was_off &= asleep
        self._forced &= asleep
        self._tries = {uid: tries for uid, tries in self._tries.items() if uid in asleep}
        told: list[str] = []
        open_ones = [node for node in nodes if abs(now_s - self._off.get(node.uid, -math.inf)) >= RECHECK_S]
        jobs: list[Job] = [partial(self._follow, node, told) for node in open_ones]
        for failure in await write_all(jobs, concurrency=_CONCURRENCY):
            if isinstance(failure.error, NotLeadingError):
                raise failure.error
            self._metrics.switch_errors.inc()
            name = open_ones[failure.index].name
            _log.warning("power not switched", extra={"node": name, "error": str(failure.error)})
        self._metrics.switched_off.set(len(self._off))
        return told

    def is_off(self, uid: str) -> bool:
        """Whether a node that sleeps is off, as its switch said lately."""
        return abs(self._now_s() - self._off.get(uid, -math.inf)) < _OFF_STALE_S

    async def _follow(self, node: Sleeper, told: list[str]) -> None:
        found = self._of(node.name)
        power = await found.switch.state()
        match node.state:
            case Waking() if power is PowerState.OFF:
                self._check_lease()
                await found.switch.on()
            case Asleep() if power is PowerState.OFF:
                self._off[node.uid] = self._now_s()
                self._was_off.add(node.uid)
            case Asleep() if power is PowerState.ON and node.uid in self._was_off:
                # Somebody switched it on: it is opened once it is ready, and not told off again.
                self._off.pop(node.uid, None)
            case Asleep() as state if power is PowerState.ON:
                await self._switch_off(node, found, state, told)
            case _:
                pass

    async def _switch_off(self, node: Sleeper, found: NodeSwitch, state: Asleep, told: list[str]) -> None:
        """Tell a node that is on to switch off: once by each process, and by force later, where its switch may."""
        force = found.may_force and self._now_s() - state.since_s >= FORCE_AFTER_S
        if (node.uid in self._forced) if force else (self._tries.get(node.uid, 0) >= _TRIES):
            return
        if not await self._still_empty(node.name, state):
            return
        self._check_lease()
        told.append(node.uid)
        if force:
            self._forced.add(node.uid)
        self._tries[node.uid] = self._tries.get(node.uid, 0) + 1
        await found.switch.off(force=force)
        self._tries[node.uid] = _TRIES

    def _check_lease(self) -> None:
        if not self._may_write():
            raise NotLeadingError("this process no longer holds the lease: not switched")

    def _of(self, name: str) -> NodeSwitch:
        found = None if self._switches is None else self._switches.get(name)
        if found is None:
            raise PowerSwitchError(f"{name} has no switch")
        return found

    async def aclose(self) -> None:
        """Close connections."""
        if self._switches is not None:
            await self._switches.aclose()
