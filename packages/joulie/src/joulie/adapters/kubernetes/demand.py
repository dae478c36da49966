"""The ConfigMap that keeps the history of demand over restarts of the operator."""

from __future__ import annotations

import base64
import zlib

import msgspec

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import CONFIG_MAPS
from joulie.domain.sleep.demand import DemandHistory, DemandState

CONFIG_MAP = "joulie-demand"
_KEY = "history"
_MAX_BYTES = 1 << 22
"""Of a history that is read, more than any can have."""
_MAX_CHARS = 900_000
"""Kubernetes takes ConfigMaps of up to 1 MiB."""


async def read_demand(client: KubeClient, namespace: str) -> DemandHistory:
    """The history that was kept; an empty one before the first was.

    Raises:
        KubernetesError: the ConfigMap cannot be read, or does not exist.
        ValueError: its content is damaged.
    """
    found = await client.get(CONFIG_MAPS, CONFIG_MAP, namespace)
    text = found.data.get(_KEY)
    return DemandHistory() if text is None else decode_demand(text)


async def write_demand(client: KubeClient, namespace: str, history: DemandHistory) -> None:
    """Keep a history.

    Raises:
        KubernetesError: the write failed.
        ValueError: the history is too large for a ConfigMap.
    """
    text = encode_demand(history)
    if len(text) > _MAX_CHARS:
        raise ValueError(f"a history of {len(text)} characters is too large for ConfigMap {CONFIG_MAP}")
    await client.patch(
        CONFIG_MAPS, CONFIG_MAP, {"data": {_KEY: text}}, namespace=namespace, field_manager=names.SLEEP_FIELD_MANAGER
    )


def encode_demand(history: DemandHistory) -> str:
    """A history as text."""
    return base64.b64encode(zlib.compress(msgspec.msgpack.encode(history.state()), 6)).decode()


def decode_demand(text: str) -> DemandHistory:
    """The history of a text.

    Raises:
        ValueError: it is damaged.
    """
    try:
        packed = zlib.decompressobj().decompress(base64.b64decode(text, validate=True), _MAX_BYTES)
        state = msgspec.msgpack.decode(packed, type=DemandState | None)
    except (ValueError, zlib.error, msgspec.DecodeError) as error:
        raise ValueError(f"ConfigMap {CONFIG_MAP}: {error}") from error
    return DemandHistory() if state is None else DemandHistory.restored(state)
