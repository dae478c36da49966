"""Types common to all Kubernetes objects (meta/v1)."""

from __future__ import annotations

import msgspec


class ApiStruct(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """Base of all API structs: camelCase on the wire, unset fields omitted, immutable and without reference cycles."""


class OwnerReference(ApiStruct, frozen=True):
    """The owner of an object, which is deleted together with it."""

    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(ApiStruct, frozen=True):
    """Metadata of an object. Managed fields, the bulk of a stored object, are not decoded."""

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
        """The controlling owner reference; None without one."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class KubernetesObject(ApiStruct, frozen=True):
    """Base of all API objects. Items of a list have no apiVersion and kind."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = ObjectMeta()


class ObjectReference(ApiStruct, frozen=True):
    """A reference to an object, such as the one that an Event is about."""

    kind: str
    name: str
    api_version: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    field_path: str = ""
