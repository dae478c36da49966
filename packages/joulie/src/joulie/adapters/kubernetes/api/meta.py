"""What all Kubernetes objects have in common (meta/v1)."""

from __future__ import annotations

import msgspec


class ApiStruct(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """A piece of an API object: camelCase on the wire, unset fields left out, immutable and free of cycles."""


class OwnerReference(ApiStruct, frozen=True):
    """The object that owns this one; deleted with it."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(ApiStruct, frozen=True):
    """Identity and labels of an object. Managed fields, the bulk of a stored object, are not decoded."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """The owner that manages this object, if any."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class KubernetesObject(ApiStruct, frozen=True):
    """A whole object. Items of a list carry no apiVersion and kind."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


class ObjectReference(ApiStruct, frozen=True):
    """What an Event is about."""

    kind: str
    name: str
    api_version: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""
