"""What the controller writes on pods that wait and that go, and in which order."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from enum import IntEnum
from itertools import count
from typing import Any

from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import PODS
from joulie.adapters.kubernetes.times import rfc3339
from joulie.adapters.kubernetes.wire import PatchKind
from joulie.domain.grid import names
from joulie.domain.grid.deferral import Conditions, HoldReason
from joulie.domain.grid.signals import GridSignal

FIELD_MANAGER = "joulie-grid"

_log = logging.getLogger(__name__)

Write = Callable[[], Awaitable[None]]


class Rank(IntEnum):
    """What is written before what."""

    URGENT = 0
    RELEASE = 1
    NOTE = 2


class NotLeadingError(RuntimeError):
    """This process does not lead any more, so it does not write."""


class WriteQueue:
    """Many writes, a few at a time, the most urgent first.

    Args:
        concurrency: writes at once.
        may_write: whether this process leads.
    """

    def __init__(self, concurrency: int, may_write: Callable[[], bool]) -> None:
        self._concurrency = concurrency
        self._may_write = may_write
        self._queue: asyncio.PriorityQueue[tuple[int, int, Write, Callable[[Exception], None]]] = (
            asyncio.PriorityQueue()
        )
        self._count = count()

    def put(self, rank: Rank, write: Write, failed: Callable[[Exception], None]) -> None:
        """Write something soon.

        Args:
            rank: among the others.
            write: does it.
            failed: told of what it raised.
        """
        self._queue.put_nowait((rank, next(self._count), write, failed))

    async def run(self) -> None:
        """Write until cancelled."""
        async with asyncio.TaskGroup() as group:
            for _ in range(self._concurrency):
                group.create_task(self._work())

    async def settled(self) -> None:
        """Wait until everything that was put has been written, or has failed."""
        await self._queue.join()

    async def _work(self) -> None:
        while True:
            _rank, _number, write, failed = await self._queue.get()
            try:
                await self._write(write)
            except Exception as error:
                failed(error)
            finally:
                self._queue.task_done()

    async def _write(self, write: Write) -> None:
        if not self._may_write():
            raise NotLeadingError("this process does not lead any more: not written")
        await write()


class PodWriter:
    """Notes on pods that wait, and lifts gates.

    Args:
        client: to write with.
    """

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def annotate(self, key: Key, uid: str, annotations: Mapping[str, str]) -> None:
        """Write annotations on this very pod.

        Raises:
            KubernetesError: it is gone, or another one of that name is there.
        """
        body = {"metadata": {"uid": uid, "annotations": dict(annotations)}}
        await self._client.patch(PODS, key.name, body, namespace=key.namespace, field_manager=FIELD_MANAGER)

    async def lift(self, key: Key, uid: str, annotations: Mapping[str, str]) -> None:
        """Take the gate off this very pod, and write annotations; the gates of others stay.

        Raises:
            KubernetesError: as `annotate`.
        """
        body: dict[str, Any] = {
            "metadata": {"uid": uid, "annotations": dict(annotations)},
            "spec": {"schedulingGates": [{"$patch": "delete", "name": names.GATE}]},
        }
        await self._client.patch(
            PODS,
            key.name,
            body,
            kind=PatchKind.STRATEGIC,
            namespace=key.namespace,
            field_manager=FIELD_MANAGER,
        )


# ---- annotations


def noted_at_hold(
    reason: HoldReason, conditions: Conditions, present: Mapping[str, str], now_s: float
) -> dict[str, str]:
    """What a pod that is held is to say, without what it says already.

    Args:
        reason: why it is held.
        conditions: of its zone.
        present: its annotations.
        now_s: s since the epoch.
    """
    wanted = _initial(conditions)
    by_price = reason is HoldReason.PRICE or (reason is HoldReason.WINDOW and conditions.carbon is None)
    if not by_price:
        wanted[names.CARBON_DELAY_TIMESTAMP] = rfc3339(now_s)
    if by_price or reason is HoldReason.BOTH:
        wanted[names.PRICE_DELAY_TIMESTAMP] = rfc3339(now_s)
    if any(key in present for key in (names.CARBON_DELAY_TIMESTAMP, names.PRICE_DELAY_TIMESTAMP)):
        # The initial values are those of the first held moment, known or not.
        wanted = {key: value for key, value in wanted.items() if key.endswith("-delay-timestamp")}
    return {key: value for key, value in wanted.items() if key not in present}


def noted_at_release(conditions: Conditions, present: Mapping[str, str], now_s: float) -> dict[str, str]:
    """What a pod that goes is to say.

    Args:
        conditions: of its zone.
        present: its annotations.
        now_s: s since the epoch.
    """
    bound = {names.BIND_TIMESTAMP: rfc3339(now_s)}
    bound |= _values(conditions, names.BIND_CARBON_INTENSITY, names.BIND_ELECTRICITY_RATE)
    held = any(key in present for key in (names.CARBON_DELAY_TIMESTAMP, names.PRICE_DELAY_TIMESTAMP))
    return bound if held else _initial(conditions) | bound


def _initial(conditions: Conditions) -> dict[str, str]:
    return _values(conditions, names.INITIAL_CARBON_INTENSITY, names.INITIAL_ELECTRICITY_RATE)


def _values(conditions: Conditions, carbon_key: str, price_key: str) -> dict[str, str]:
    found = {carbon_key: _value(conditions.carbon, 2), price_key: _value(conditions.price, 6)}
    return {key: value for key, value in found.items() if value is not None}


def _value(signal: GridSignal | None, decimals: int) -> str | None:
    """The value in force; None where it is not known."""
    if signal is None or not signal.known or signal.value is None:
        return None
    return f"{signal.value:.{decimals}f}"
