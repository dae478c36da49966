"""The life of a daemon: an event loop, signals that stop it gracefully, a meaningful exit status."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable

_log = logging.getLogger(__name__)


def run(main: Callable[[asyncio.Event], Awaitable[None]], *, fast_loop: bool = False) -> None:
    """Run a daemon until it ends or is told to stop, then leave the process.

    SIGTERM and SIGINT set the event, and the daemon puts its affairs in order; a second signal ends it at once. Leaves
    with 0 after a graceful stop and with 1 after a failure, whose cause is logged.

    Args:
        main: the daemon; it returns soon after the event is set.
        fast_loop: use uvloop.
    """
    factory = None
    if fast_loop:
        import uvloop

        factory = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(_guarded(main))
    except asyncio.CancelledError:
        _log.warning("ended by a second signal")
        sys.exit(1)
    except Exception:
        _log.critical("stopped by an error", exc_info=True)
        sys.exit(1)


async def _guarded(main: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None

    def signalled(name: str) -> None:
        if stop.is_set():
            task.cancel()
        else:
            _log.info("stopping", extra={"signal": name})
            stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, signalled, number.name)
    await main(stop)


async def every(interval_s: float, stop: asyncio.Event) -> AsyncIterator[None]:
    """Yield now, then every `interval_s` seconds until `stop` is set; a slow round only delays the next one."""
    loop = asyncio.get_running_loop()
    while not stop.is_set():
        began_s = loop.time()
        yield
        pause_s = max(0.0, began_s + interval_s - loop.time())
        try:
            await asyncio.wait_for(stop.wait(), timeout=pause_s)
        except TimeoutError:
            continue
