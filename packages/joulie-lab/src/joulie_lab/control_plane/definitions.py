"""When the API server serves CustomResourceDefinitions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from joulie_lab.control_plane.api import ApiError

_DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
# Not routed yet, watch cache not filled yet, route being changed.
_NOT_SERVED_YET = (404, 429, 503)


def definitions_are_served(request: Callable[[str, str], Any]) -> bool:
    """Whether all definitions are established and served, with schemas accepted as structural.

    `kubectl wait` is not sufficient: it fails if a definition was just created and has no conditions yet. Nor is an
    established definition: its watch cache starts with the first request, and until it is filled, lists and watches
    are refused with 429 (KEP-4568).

    Args:
        request: makes a request of a method and a path, and returns the decoded response.

    Raises:
        ApiError: a definition is refused for another reason.
    """
    for definition in request("GET", _DEFINITIONS)["items"]:
        conditions = definition.get("status", {}).get("conditions") or ()
        held = {condition["type"] for condition in conditions if condition["status"] == "True"}
        if "Established" not in held or "NonStructuralSchema" in held:
            return False
        spec = definition["spec"]
        for version in (one["name"] for one in spec["versions"] if one["served"]):
            try:
                request("GET", f"/apis/{spec['group']}/{version}/{spec['names']['plural']}")
            except ApiError as error:
                if error.status not in _NOT_SERVED_YET:
                    raise
                return False
    return True
