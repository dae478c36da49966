"""What a pod's node selector and required node affinity admit of the power profiles: the older demand signal.

Source: spec, Kubernetes API, scheduling constraints. Other labels are taken as satisfiable; only the power profile's is
read.
"""

from __future__ import annotations

from joulie.adapters.kubernetes.api.core import NodeSelectorRequirement, NodeSelectorTerm, PodSpec
from joulie.adapters.kubernetes.names import POWER_PROFILE_LABEL
from joulie.domain.policy import PowerConstraint, Profile

_OPERATORS = {"In", "NotIn", "Exists", "DoesNotExist"}


def power_constraint(spec: PodSpec) -> PowerConstraint:
    """Which power profiles the pod may run on.

    Both, or nothing said: general. Neither (also the old value draining-performance alone, and unlabelled nodes only),
    or an operator that does not fit a profile: unknown.
    """
    terms = _required_terms(spec)
    if any(_unreadable(requirement) for term in terms or () for requirement in _on_profile(term)):
        return PowerConstraint.UNKNOWN
    selected = spec.node_selector.get(POWER_PROFILE_LABEL)
    admitted = {
        profile
        for profile in Profile
        if selected in {None, profile} and (terms is None or any(_term_admits(term, profile) for term in terms))
    }
    if len(admitted) == len(Profile):
        return PowerConstraint.GENERAL
    if admitted == {Profile.PERFORMANCE}:
        return PowerConstraint.PERFORMANCE_ONLY
    return PowerConstraint.ECO_ONLY if admitted else PowerConstraint.UNKNOWN


def _required_terms(spec: PodSpec) -> tuple[NodeSelectorTerm, ...] | None:
    """The OR-ed terms of the required affinity; None where it requires nothing."""
    affinity = spec.affinity.node_affinity if spec.affinity else None
    return affinity.required.node_selector_terms if affinity and affinity.required else None


def _on_profile(term: NodeSelectorTerm) -> list[NodeSelectorRequirement]:
    return [requirement for requirement in term.match_expressions if requirement.key == POWER_PROFILE_LABEL]


def _unreadable(requirement: NodeSelectorRequirement) -> bool:
    return requirement.operator not in _OPERATORS


def _term_admits(term: NodeSelectorTerm, profile: Profile) -> bool:
    """Whether a node of that profile can match; a term without requirements matches no node at all."""
    if not term.match_expressions and not term.match_fields:
        return False
    return all(_requirement_admits(requirement, profile) for requirement in _on_profile(term))


def _requirement_admits(requirement: NodeSelectorRequirement, profile: Profile) -> bool:
    match requirement.operator:
        case "In":
            return profile in requirement.values
        case "NotIn":
            return profile not in requirement.values
        case "Exists":
            return True
        case _:  # DoesNotExist: a node with a profile has the label.
            return False
