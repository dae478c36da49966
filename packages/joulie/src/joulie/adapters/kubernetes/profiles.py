"""WorkloadProfiles by the workload that they are about: one each, unless somebody wrote their own beside it."""

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
    """What a program keeps of a WorkloadProfile at least.

    Attributes:
        owner: the workload that it is about.
        facts: what counts of it.
        automatic: whether the classifier keeps it.
    """

    owner: WorkloadKey
    facts: ProfileFacts
    automatic: bool


_EntryT = TypeVar("_EntryT", bound=ProfileEntry)


def keep_profile(profile: WorkloadProfile) -> ProfileEntry:
    """What is kept of a WorkloadProfile."""
    return ProfileEntry(profile_owner(profile), profile_facts(profile), by_classifier(profile))


def by_classifier(profile: WorkloadProfile) -> bool:
    """Whether the classifier keeps a profile."""
    return profile.metadata.labels.get(names.MANAGED_BY_LABEL) == names.CLASSIFIER


class ProfileIndex(Generic[_EntryT]):
    """Keeps the profiles of each workload; told of every change of a cache of profiles."""

    def __init__(self) -> None:
        self._of: dict[WorkloadKey, dict[Key, _EntryT]] = {}

    def changed(self, key: Key, old: _EntryT | None, new: _EntryT | None) -> None:
        """A profile came, changed or went."""
        if old is not None:
            siblings = self._of[old.owner]
            del siblings[key]
            if not siblings:
                del self._of[old.owner]
        if new is not None:
            self._of.setdefault(new.owner, {})[key] = new

    def of(self, workload: WorkloadKey) -> Mapping[Key, _EntryT]:
        """The profiles of a workload."""
        return self._of.get(workload, {})

    def counting(self, workload: WorkloadKey) -> _EntryT | None:
        """The profile that counts: somebody's own before the classifier's, then the first by name."""
        profiles = self.of(workload)
        key = min(profiles, key=lambda key: (profiles[key].automatic, key), default=None)
        return None if key is None else profiles[key]

    def all_counting(self) -> dict[WorkloadKey, _EntryT]:
        """The profile that counts of each workload that has any."""
        return {workload: entry for workload in self._of if (entry := self.counting(workload)) is not None}
