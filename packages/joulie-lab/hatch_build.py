"""Puts the Helm chart, which lies outside the package, into the wheel; an editable install finds it where it lies."""

from __future__ import annotations

from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class ChartHook(BuildHookInterface):  # type: ignore[type-arg]
    """Adds `deploy/helm/joulie` to wheels."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Add the chart, unless the install is editable: a copy in site-packages would be out of date at once."""
        if version == "standard":
            build_data["force_include"]["../../deploy/helm/joulie"] = "joulie_lab/control_plane/charts/joulie"
