"""When an agent must let go of a node's GPUs, by the node's labels.

A driver cannot be unloaded, a GPU not be reset and MIG not be switched on while any process has the driver open.

Source: NVIDIA k8s-operator-libs (states of a driver upgrade), k8s-driver-manager and mig-parted (operands paused for a
driver upgrade or a MIG change, state of the MIG configuration).
"""

from __future__ import annotations

from collections.abc import Mapping

UPGRADE_KEY = "nvidia.com/gpu-driver-upgrade-state"
MIG_STATE_KEY = "nvidia.com/mig.config.state"
OPERAND_PREFIX = "nvidia.com/gpu.deploy."

# Before an upgrade begins a node may wait for days for others (upgrade-required), and after it only to be uncordoned.
# The states between are cordon-required, wait-for-jobs-required, pod-deletion-required, drain-required,
# node-maintenance-required, post-maintenance-required, pod-restart-required, validation-required. After upgrade-failed
# the driver's pod goes on trying to unload the old one.
_USABLE = frozenset({"", "upgrade-required", "uncordon-required", "upgrade-done"})
_MIG_CHANGING = frozenset({"pending", "rebooting"})
_PAUSED = "paused-for-"


def gpu_hold_reason(labels: Mapping[str, str]) -> str | None:
    """Why GPU drivers must not be used now; None if they may be.

    Args:
        labels: labels of the node.
    """
    if labels.get(UPGRADE_KEY, "") not in _USABLE:
        return f"the GPU driver is being upgraded: {UPGRADE_KEY}={labels[UPGRADE_KEY]}"
    if labels.get(MIG_STATE_KEY) in _MIG_CHANGING:
        return f"MIG is being configured: {MIG_STATE_KEY}={labels[MIG_STATE_KEY]}"
    for key in sorted(labels):
        if key.startswith(OPERAND_PREFIX) and labels[key].startswith(_PAUSED):
            return f"GPU clients are paused: {key}={labels[key]}"
    return None
