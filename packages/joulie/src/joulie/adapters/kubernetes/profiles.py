"""Indexes WorkloadProfiles by their workload: one per workload, unless a user wrote another beside the classifier's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import msgspec

from joulie.adapters.kubernetes import names
from joulie.adapters.kubernetes.api.v1alpha1 import WorkloadProfile
from joulie.adapters.kubernetes.cache import Key
from joulie.adapters.kubernetes.pods import Owner, ProfileFacts, profile_facts, profile_owner

WorkloadKey = tuple[str, Owner]
"""Namespace and workload."""


class ProfileEntry(msgspec.Struct, frozen=True):
    """The cached part of a WorkloadProfile.

    Attributes:
        owner: workload that the profile describes.
        facts: classification of the workload.
        automatic: whether the classifier manages the profile.
    """

    owner: WorkloadKey
    facts: ProfileFacts
    automatic: bool


_EntryT = TypeVar("_EntryT", bound=ProfileEntry)


def profile_entry(profile: WorkloadProfile) -> ProfileEntry:
    """Reduce a WorkloadProfile to its cached part."""
    return ProfileEntry(profile_owner(profile), profile_facts(profile), by_classifier(profile))


def by_classifier(profile: WorkloadProfile) -> bool:
    """Whether the classifier manages a profile."""
    return profile.metadata.labels.get(names.MANAGED_BY_LABEL) == names.CLASSIFIER


class ProfileIndex(Generic[_EntryT]):
    """Index of WorkloadProfiles by workload, updated as a listener of a cache of profiles."""

    def __init__(self) -> None:
        self._by_workload: dict[WorkloadKey, dict[Key, _EntryT]] = {}

    def changed(self, key: Key, old: _EntryT | None, new: _EntryT | None) -> None:
        """Update the index after a profile was added, changed or deleted."""
        if old is not None:
            siblings = self._by_workload[old.owner]
            del siblings[key]
            if not siblings:
                del self._by_workload[old.owner]
        if new is not None:
            self._by_workload.setdefault(new.owner, {})[key] = new

    def of(self, workload: WorkloadKey) -> Mapping[Key, _EntryT]:
        """The profiles of a workload."""
        return self._by_workload.get(workload, {})

    def effective(self, workload: WorkloadKey) -> _EntryT | None:
        """The effective profile: a user's own before the classifier's, then the first by name; None if none."""
        key = self.effective_key(workload)
        return None if key is None else self.of(workload)[key]

    def effective_key(self, workload: WorkloadKey) -> Key | None:
        """Namespace and name of the effective profile; None if none."""
        profiles = self.of(workload)
        return min(profiles, key=lambda key: (profiles[key].automatic, key), default=None)

    def all_effective(self) -> dict[WorkloadKey, _EntryT]:
        """The effective profile of each workload that has one."""
        return {workload: entry for workload in self._by_workload if (entry := self.effective(workload)) is not None}
