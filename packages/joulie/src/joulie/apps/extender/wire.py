"""The scheduler extender protocol v1, byte for byte as kube-scheduler sends and expects it.

Its Go types carry no JSON tags, so the keys are ``Pod``, ``Nodes``, ``NodeNames`` and so on, absent members are
``null``, and Go reads keys in any case. Source: k8s.io/kube-scheduler/extender/v1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import msgspec

from joulie.adapters.kubernetes.api.core import Pod
from joulie.adapters.kubernetes.api.meta import ObjectMeta

_T = TypeVar("_T")


class BadRequestError(ValueError):
    """A malformed request body; the message says what is wrong."""


class NodeItem(msgspec.Struct, gc=False):
    """Name and labels of a whole node."""

    metadata: ObjectMeta


class NodeList(msgspec.Struct):
    """Whole nodes as raw bytes, so that echoing them loses no field."""

    items: list[msgspec.Raw] = []
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


class ExtenderArgs(msgspec.Struct, rename={"pod": "Pod", "nodes": "Nodes", "node_names": "NodeNames"}):
    """A pod and its candidates: whole nodes, or with ``nodeCacheCapable`` their names."""

    pod: Pod | None = None
    nodes: NodeList | None = None
    node_names: list[str] | None = None


class Victims(msgspec.Struct, rename={"pods": "Pods", "pdb_violations": "NumPDBViolations"}):
    """Pods that would be evicted from a node, whole."""

    pods: list[NodeItem] | None = None
    pdb_violations: int = 0


class PreemptionArgs(
    msgspec.Struct,
    rename={"pod": "Pod", "victims": "NodeNameToVictims", "meta_victims": "NodeNameToMetaVictims"},
):
    """A pod and the nodes where evicting others would make room; victims by their UIDs are echoed as they came."""

    pod: Pod | None = None
    victims: dict[str, Victims | None] | None = None
    meta_victims: dict[str, msgspec.Raw] | None = None


_ARGS = msgspec.json.Decoder(ExtenderArgs)
_PREEMPTION = msgspec.json.Decoder(PreemptionArgs)
_NODE = msgspec.json.Decoder(NodeItem)
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_ENCODER = msgspec.json.Encoder()
_NULL = b"null"


def read_args(body: bytes) -> tuple[Pod, list[str] | NodeList]:
    """Decode the arguments of /filter and /prioritize.

    Raises:
        BadRequestError: the body is malformed.
    """
    args = decoded(_ARGS, body)
    if args.pod is None or (args.nodes is None and args.node_names is None):
        args = decoded(_ARGS, _with_exact_keys(body, ExtenderArgs))
    if args.pod is None:
        raise BadRequestError("Pod is missing")
    # Whichever nodeCacheCapable chose; with both given, the cheaper.
    candidates = args.nodes if args.node_names is None else args.node_names
    if candidates is None:
        raise BadRequestError("neither Nodes nor NodeNames is set")
    return args.pod, candidates


def read_preemption(body: bytes) -> tuple[Pod, PreemptionArgs]:
    """Decode the arguments of /preempt.

    Raises:
        BadRequestError: the body is malformed.
    """
    args = decoded(_PREEMPTION, body)
    if args.pod is None or (args.victims is None and args.meta_victims is None):
        args = decoded(_PREEMPTION, _with_exact_keys(body, PreemptionArgs))
    if args.pod is None:
        raise BadRequestError("Pod is missing")
    return args.pod, args


def read_nodes(nodes: NodeList) -> list[ObjectMeta]:
    """Names and labels of whole nodes.

    Raises:
        BadRequestError: one of them is malformed.
    """
    return [decoded(_NODE, item).metadata for item in nodes.items]


def decoded(decoder: msgspec.json.Decoder[_T], body: bytes | msgspec.Raw) -> _T:
    """Decode a body.

    Raises:
        BadRequestError: the body is malformed.
    """
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequestError(f"invalid JSON: {error}") from error


def _with_exact_keys(body: bytes, message: type[msgspec.Struct]) -> bytes:
    """The body with its top-level keys in Go's spelling; Go reads keys case-insensitively."""
    exact = {name.lower(): name for name in message.__struct_encode_fields__}
    members = decoded(_MEMBERS, body)
    return _ENCODER.encode({exact.get(key.lower(), key): value for key, value in members.items()})


def with_names(body: bytes, names: bytes) -> bytes:
    """A call with other NodeNames, as Go would write it: they are its last member.

    Args:
        body: a call with NodeNames.
        names: a JSON array.
    """
    return body[: body.rindex(b"[")] + names + b"}"


def json_text(value: str | list[str]) -> bytes:
    """A JSON string, or an array of them."""
    return _ENCODER.encode(value)


def host_score(name: bytes, score: int) -> bytes:
    """One entry of a HostPriorityList; `name` is a JSON string."""
    return b'{"Host":%b,"Score":%d}' % (name, score)


def refusal(name: str, reason: str) -> bytes:
    """One entry of FailedAndUnresolvableNodes."""
    return json_text(name) + b":" + json_text(reason)


def json_array(items: Iterable[bytes]) -> bytes:
    """A JSON array of serialised items."""
    return b"[" + b",".join(items) + b"]"


def node_list(metadata: msgspec.Raw, items: Iterable[msgspec.Raw]) -> bytes:
    """A NodeList of whole nodes, as they came."""
    return b'{"metadata":%b,"items":%b}' % (bytes(metadata), json_array(map(bytes, items)))


def filter_result(
    *, names: bytes = _NULL, nodes: bytes = _NULL, unresolvable: Iterable[bytes] = (), error: str = ""
) -> bytes:
    """An ExtenderFilterResult.

    Refusals are unresolvable: a ``FailedNodes`` entry would let the scheduler evict pods for nothing.

    Args:
        names: JSON array of the nodes that passed, where names were given.
        nodes: `node_list` of the nodes that passed, where whole nodes were given.
        unresolvable: each refused node as `refusal` has it.
        error: error message; empty without one.
    """
    return b'{"Nodes":%b,"NodeNames":%b,"FailedNodes":{},"FailedAndUnresolvableNodes":{%b},"Error":%b}' % (
        nodes,
        names,
        b",".join(unresolvable),
        json_text(error),
    )


def preemption_result(victims: Mapping[str, msgspec.Raw]) -> bytes:
    """An ExtenderPreemptionResult; victims are always given by UID."""
    return b'{"NodeNameToMetaVictims":%b}' % _ENCODER.encode(victims)


def meta_victims(victims: Victims) -> msgspec.Raw:
    """Whole victims by their UIDs."""
    pods = [{"UID": pod.metadata.uid} for pod in victims.pods or ()]
    return msgspec.Raw(_ENCODER.encode({"Pods": pods, "NumPDBViolations": victims.pdb_violations}))
