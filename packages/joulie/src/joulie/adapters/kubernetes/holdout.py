"""The ConfigMap that keeps the evidence of the holdout of GPU limits over restarts and changes of leader."""

from __future__ import annotations

from typing import NamedTuple

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.client import KubeClient
from joulie.adapters.kubernetes.resources import CONFIG_MAPS

CONFIG_MAP = "joulie-holdout"
EVIDENCE_KEY = "evidence"
_WRITER_KEY = "writer"


class StoredEvidence(NamedTuple):
    """The ConfigMap.

    Attributes:
        text: what it keeps; None before the first write.
        writer: name of the last write; empty before.
        version: resource version.
        uid: of the ConfigMap.
    """

    text: str | None
    writer: str
    version: str
    uid: str


async def read_holdout(client: KubeClient, namespace: str) -> StoredEvidence:
    """Read the ConfigMap.

    Raises:
        KubernetesError: it cannot be read, or does not exist.
    """
    found = await client.get(CONFIG_MAPS, CONFIG_MAP, namespace)
    meta = found.metadata
    return StoredEvidence(
        found.data.get(EVIDENCE_KEY), found.data.get(_WRITER_KEY, ""), meta.resource_version, meta.uid
    )


async def write_holdout(client: KubeClient, namespace: str, text: str, writer: str, version: str) -> None:
    """Write the ConfigMap as long as nobody has since it was read.

    Args:
        client: Kubernetes client.
        namespace: its namespace.
        text: what to keep.
        writer: name of this write, which no other has.
        version: resource version that was read.

    Raises:
        KubernetesError: the write failed; a `ConflictError` where somebody else wrote.
    """
    body = {"metadata": {"resourceVersion": version}, "data": {EVIDENCE_KEY: text, _WRITER_KEY: writer}}
    await client.patch(CONFIG_MAPS, CONFIG_MAP, body, namespace=namespace, field_manager=names.GPU_LIMITS_FIELD_MANAGER)
