"""Experiments on a real control plane: each program is a process, and simulated time runs faster than wall time."""

from joulie_lab.apps.experiment.control_plane.pace import DEFAULT_TIME_SCALE, why_too_fast
from joulie_lab.apps.experiment.control_plane.runner import run_on_control_plane, why_not
from joulie_lab.apps.experiment.control_plane.site import ControlPlaneRunError

__all__ = ["DEFAULT_TIME_SCALE", "ControlPlaneRunError", "run_on_control_plane", "why_not", "why_too_fast"]
