"""Runs a daemon: event loop, graceful stop on signals, exit status."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from typing import Any

from joulie.adapters.kubernetes.errors import ConfigurationError
from joulie.waiting import set_within

_log = logging.getLogger(__name__)


def run(main: Callable[[asyncio.Event], Awaitable[None]], *, fast_loop: bool = False) -> None:
    """Run a daemon until it ends or is stopped by a signal; exit with 1 after a failure.

    The first SIGTERM or SIGINT sets the event, so that the daemon stops gracefully; a second signal cancels it. The
    cause of a failure is logged.

    Args:
        main: coroutine of the daemon, which returns soon after the event is set.
        fast_loop: whether to use uvloop.
    """
    factory = None
    if fast_loop:
        import uvloop

        factory = uvloop.new_event_loop
    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(_guarded(main))
    except asyncio.CancelledError:
        _log.warning("cancelled by a second signal")
        sys.exit(1)
    except (ConfigurationError, OSError) as error:
        # Not of the program: no cluster to connect to, an address that is taken. A traceback would hide the reason.
        _log.critical("stopped", extra={"problem": str(error)}, exc_info=_log.isEnabledFor(logging.DEBUG))
        sys.exit(1)
    except Exception:
        _log.critical("stopped by an unhandled error", exc_info=True)
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


async def run_parts(stop: asyncio.Event, parts: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Run the parts of a program side by side until `stop` is set, or one of them ends or fails.

    Then they are cancelled one after the other, the last one first: what comes first is there as long as the others.

    Args:
        stop: set when the program is to stop.
        parts: by the name of its task.

    Raises:
        Exception: what a part failed with.
    """
    tasks = [asyncio.create_task(part, name=name) for name, part in (*parts.items(), ("stop", stop.wait()))]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in reversed(tasks):
            task.cancel()
            await asyncio.wait([task])
    for task in done:
        task.result()


async def every(interval_s: float, stop: asyncio.Event) -> AsyncIterator[None]:
    """Yield immediately, then every `interval_s` seconds until `stop` is set; a slow round delays only the next one."""
    loop = asyncio.get_running_loop()
    while not stop.is_set():
        began_s = loop.time()
        yield
        pause_s = max(0.0, began_s + interval_s - loop.time())
        await set_within(stop, pause_s)
