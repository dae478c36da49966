"""Reads a pod's node constraints, and derives the power profiles that they admit (the older demand signal).

Source of the signal: spec, Kubernetes API, scheduling constraints.
"""

from __future__ import annotations

from functools import lru_cache

from joulie.adapters.kubernetes.api.core import NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Toleration
from joulie.adapters.kubernetes.names import POWER_PROFILE_LABEL
from joulie.domain.policy import PowerConstraint, Profile
from joulie.domain.scheduling.labels import Requirement
from joulie.domain.scheduling.node_rules import ANYWHERE, NodeRules, Term, selector_requirements

_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})
"""Operators that apply to a power profile, which is not a number."""


def placement(spec: PodSpec, profile_key: str = POWER_PROFILE_LABEL) -> tuple[NodeRules, PowerConstraint]:
    """The node rules and power constraint of a pod; equal specs share the same values.

    Args:
        spec: the pod's spec.
        profile_key: node label of the power profile.
    """
    terms = required_terms(spec)
    # Kubernetes adds time-limited tolerations of lost nodes to every pod; they make no node feasible.
    tolerations = tuple(one for one in spec.tolerations if one.toleration_seconds is None)
    if not spec.node_selector and terms is None and not tolerations:
        return ANYWHERE, PowerConstraint.GENERAL
    return _shared(tuple(sorted(spec.node_selector.items())), terms, tolerations, profile_key)


def required_terms(spec: PodSpec) -> tuple[NodeSelectorTerm, ...] | None:
    """The OR-ed terms of the required node affinity; None without one."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    return affinity.required.node_selector_terms if affinity and affinity.required else None


def requirements(stated: tuple[NodeSelectorRequirement, ...]) -> tuple[Requirement, ...]:
    """Convert label requirements to the domain's type."""
    return tuple(Requirement(one.key, one.operator, one.values) for one in stated)


@lru_cache(maxsize=8192)
def _shared(
    selector: tuple[tuple[str, str], ...],
    terms: tuple[NodeSelectorTerm, ...] | None,
    tolerations: tuple[Toleration, ...],
    profile_key: str,
) -> tuple[NodeRules, PowerConstraint]:
    """A shared value for all pods with the same constraints, to save memory: a hundred thousand are cached."""
    found = None
    if terms is not None:
        found = tuple(Term(requirements(one.match_expressions), requirements(one.match_fields)) for one in terms)
    rules = NodeRules(selector_requirements(dict(selector)), found, tolerations)
    return rules, _power_constraint(rules, profile_key)


def _power_constraint(rules: NodeRules, profile_key: str) -> PowerConstraint:
    """The power profiles that the pod's node rules admit; other labels than the power profile's count as satisfied.

    GENERAL if both profiles are admitted or none is mentioned. UNKNOWN if neither is admitted (as with only the old
    value draining-performance, or unlabelled nodes only) or an operator does not apply to a profile.
    """
    stated = [one for term in rules.terms or () for one in term.labels if one.key == profile_key]
    if any(one.operator not in _OPERATORS for one in stated):
        return PowerConstraint.UNKNOWN
    admitted = {profile for profile in Profile if rules.admits({profile_key: profile}, ignoring=profile_key.__ne__)}
    if len(admitted) == len(Profile):
        return PowerConstraint.GENERAL
    if admitted == {Profile.PERFORMANCE}:
        return PowerConstraint.PERFORMANCE_ONLY
    return PowerConstraint.ECO_ONLY if admitted else PowerConstraint.UNKNOWN
