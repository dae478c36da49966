"""What Joulie's accounts wrote, by the API server's audit log."""

from collections.abc import Iterable, Mapping
from typing import Any

from support.loop import NAMESPACE

_ACCOUNTS = f"system:serviceaccount:{NAMESPACE}:"
# The simulator plays the hardware and the jobs; the second scheduler is Kubernetes' own program.
_NOT_JOULIE = ("simulator", "scheduler")
_JOULIES_OWN = {
    ("", "events"),
    ("events.k8s.io", "events"),
    ("coordination.k8s.io", "leases"),
    # The switch of gating, and the binding of Joulie's own policy.
    ("", "configmaps"),
    ("admissionregistration.k8s.io", "mutatingadmissionpolicybindings"),
}


def foreign_writes(events: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str]]:
    """Verb, resource and name of what Joulie's accounts wrote on objects that are not Joulie's."""
    found = []
    for event in events:
        account = event["user"]["username"]
        target = event.get("objectRef", {})
        kind = target.get("apiGroup", ""), target.get("resource", "")
        ours = account.startswith(_ACCOUNTS) and not account.endswith(_NOT_JOULIE)
        if ours and event["responseStatus"]["code"] < 300 and kind[0] != "joulie.io" and kind not in _JOULIES_OWN:
            found.append(
                (event["verb"], f"{kind[1]}/{target.get('subresource', '')}".rstrip("/"), target.get("name", ""))
            )
    return found
