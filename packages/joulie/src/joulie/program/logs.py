"""Logging to standard error: one JSON object per line, or human-readable text."""

from __future__ import annotations

import json
import logging
import sys

import stamina.instrumentation
from pythonjsonlogger.core import RESERVED_ATTRS
from pythonjsonlogger.json import JsonFormatter

_log = logging.getLogger(__name__)
_RENAMED = {"levelname": "level", "name": "logger", "message": "msg"}


def configure(level: str, log_format: str) -> None:
    """Set up logging for the process.

    Args:
        level: minimum log level: debug, info, warning or error.
        log_format: ``json`` or ``text``.
    """
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        formatter: logging.Formatter = JsonFormatter(
            "%(levelname)s %(name)s %(message)s", rename_fields=_RENAMED, timestamp="ts"
        )
    else:
        formatter = _TextFormatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(formatter)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Libraries log every request at level info.
    for noisy in ("httpx2", "httpcore2", "uvicorn.error", "asyncio"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    stamina.instrumentation.set_on_retry_hooks([_log_retry])


class _TextFormatter(logging.Formatter):
    """The message, followed by the fields of the record as ``name=value``."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name
        """Format the message line."""
        fields = {name: value for name, value in vars(record).items() if name not in RESERVED_ATTRS}
        return " ".join(
            [super().formatMessage(record), *(f"{name}={_quoted(value)}" for name, value in fields.items())]
        )


def _quoted(value: object) -> str:
    """A value as one word: quoted as JSON if it is text with spaces, quotes or line breaks."""
    text = str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text, ensure_ascii=False)


def _log_retry(details: stamina.instrumentation.RetryDetails) -> None:
    """Log a retry by its cause. The library's own record would show the arguments of the call, secrets among them."""
    _log.warning(
        "request failed, retrying",
        extra={
            "problem": f"{type(details.caused_by).__name__}: {details.caused_by}",
            "attempt": details.retry_num,
            "wait_s": round(details.wait_for, 2),
        },
    )
