"""Logs: one JSON object a line on standard error, or text for people."""

from __future__ import annotations

import logging
import sys

from pythonjsonlogger.json import JsonFormatter

_RENAMED = {"levelname": "level", "name": "logger", "message": "msg"}


def configure(level: str, log_format: str) -> None:
    """Set up logging for the process.

    Args:
        level: least level that is written: debug, info, warning or error.
        log_format: ``json`` or ``text``.
    """
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        formatter: logging.Formatter = JsonFormatter(
            "%(levelname)s %(name)s %(message)s", rename_fields=_RENAMED, timestamp="ts"
        )
    else:
        formatter = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # The libraries' notes about each request belong to debugging, if anywhere.
    for noisy in ("httpx2", "httpcore2", "stamina", "uvicorn.error", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
