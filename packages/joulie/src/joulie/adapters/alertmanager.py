"""Alertmanager's webhook, version 4 of its data: the alerts of a notification.

Source: the configuration reference of Prometheus Alertmanager, webhook_config.
"""

from __future__ import annotations

import re
from typing import Annotated, Literal

import msgspec

MAX_ALERTS = 256
"""Alerts of a notification that are taken; `max_alerts` of the receiver should be at most that."""
VERSION = "4"
_FINGERPRINT = re.compile(r"[0-9a-f]{16}", re.ASCII)


class NotificationError(ValueError):
    """The body is no notification of Alertmanager."""


class Alert(msgspec.Struct, frozen=True):
    """One alert.

    Attributes:
        status: whether it fires, or has been resolved.
        fingerprint: what it is recognised by, 16 hexadecimal digits.
        labels: its labels.
    """

    status: Literal["firing", "resolved"]
    fingerprint: str
    labels: dict[str, str]


class _Notification(msgspec.Struct, frozen=True):
    version: str
    alerts: Annotated[list[Alert], msgspec.Meta(max_length=MAX_ALERTS)]


_DECODER = msgspec.json.Decoder(_Notification)


def read_notification(body: bytes) -> list[Alert]:
    """The alerts of a notification.

    Raises:
        NotificationError: the body is malformed.
    """
    try:
        found = _DECODER.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotificationError(f"not a notification of Alertmanager: {error}") from error
    if found.version != VERSION:
        raise NotificationError(f"version {found.version!r} of Alertmanager's webhook, expected {VERSION!r}")
    for alert in found.alerts:
        if not _FINGERPRINT.fullmatch(alert.fingerprint):
            raise NotificationError("an alert's fingerprint is not 16 hexadecimal digits")
    return found.alerts
