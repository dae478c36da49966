"""Names of labels, annotations, field managers and objects. Source: spec, Kubernetes API, labels and annotations."""

from __future__ import annotations

import hashlib
import re

GROUP = "joulie.io"
VERSION = "v1alpha1"

# Labels of nodes.
MANAGED_LABEL = "joulie.io/managed"
RESERVED_LABEL = "joulie.io/reserved"
TRIAL_LABEL = "joulie.io/trial"
"""Name of the PowerTrial that sets a node's mode at present."""
MODE_LABEL = "joulie.io/mode"
"""observe or enforce: takes precedence over the setting MODE. Also a label of namespaces, for deferral."""
POWER_PROFILE_LABEL = "joulie.io/power-profile"
DRAINING_LABEL = "joulie.io/draining"
RESTORE_PENDING_LABEL = "joulie.io/restore-pending"
"""A cap was requested on the node, and no agent has confirmed since that the original limits are back."""
KEEP_AWAKE_LABEL = "joulie.io/keep-awake"
"""The node never sleeps, unless the value is "false"."""
RACK_LABEL = "joulie.io/rack"
COOLING_ZONE_LABEL = "joulie.io/cooling-zone"
HW_CPU_MODEL_LABEL = "joulie.io/hw.cpu-model"
HW_CPU_SOCKETS_LABEL = "joulie.io/hw.cpu-sockets"
HW_GPU_MODEL_LABEL = "joulie.io/hw.gpu-model"
HW_GPU_COUNT_LABEL = "joulie.io/hw.gpu-count"
GPU_LIMIT_RANGE_LABELS = ("nvidia.com/gpu.power.limit.min", "nvidia.com/gpu.power.limit.max")
"""Smallest and largest limit of one GPU, mW, as NVIDIA proposes them for its GPU feature discovery."""

OVERRIDE_LABEL = "joulie.io/override"
"""Label of a NodePowerProfile: it takes effect only if this is "true"."""

MANAGED_BY_LABEL = "app.kubernetes.io/managed-by"
CLASSIFIER = "joulie-classifier"
"""Value of `MANAGED_BY_LABEL` on WorkloadProfiles managed by the classifier; all others were written by users."""

# Taint and annotations of nodes that sleep.
ASLEEP_TAINT = "joulie.io/asleep"
"""Keeps pods off a node that sleeps, or is about to."""
SLEEP_STATE_ANNOTATION = "joulie.io/sleep-state"
"""State of the node, see `joulie.domain.sleep.states.mark_of`; written and removed together with the taint."""
POWER_SWITCH_ANNOTATION = "joulie.io/power-switch"
"""How a node lets itself be switched off while it sleeps: "redfish"."""
REMOVABLE_ANNOTATION = "joulie.io/removable-since"
"""Since when a node that an autoscaler owns is empty and could be removed."""

# Annotations of pods; the first four are read from workloads too.
WORKLOAD_CLASS_ANNOTATION = "joulie.io/workload-class"
RESCHEDULABLE_ANNOTATION = "joulie.io/reschedulable"
CPU_SENSITIVITY_ANNOTATION = "joulie.io/cpu-sensitivity"
GPU_SENSITIVITY_ANNOTATION = "joulie.io/gpu-sensitivity"
GPU_LIMITS_ANNOTATION = "joulie.io/gpu-limits"
"""true or false: whether the pod takes part in the search for power limits."""
GPU_POWER_LIMIT_ANNOTATION = "dynamo.nvidia.com/gpu-power-limit"
"""W for each GPU of the pod, as NVIDIA Dynamo's planner states it: an upper bound."""
PROGRESS_METRIC_ANNOTATION = "joulie.io/progress-metric"
"""Counter of the pod's own work in Prometheus: steps, tokens, samples."""
SIM_CPU_UTIL_PCT_ANNOTATION = "sim.joulie.io/cpu-util-pct"
SIM_GPU_UTIL_PCT_ANNOTATION = "sim.joulie.io/gpu-util-pct"
SIM_MEMORY_PRESSURE_PCT_ANNOTATION = "sim.joulie.io/memory-pressure-pct"
SIM_GPU_JOB_ANNOTATION = "sim.joulie.io/gpu-job"

# Field managers of server-side apply. Operator and agent both write NodeTwins; neither may erase the other's fields.
OPERATOR_FIELD_MANAGER = "joulie-operator"
AGENT_FIELD_MANAGER = "joulie-agent"
GPU_LIMITS_FIELD_MANAGER = "joulie-gpu-limits"
GPU_RANGE_FIELD_MANAGER = "joulie-gpu-range"
TRIAL_FIELD_MANAGER = "joulie-trial"
POWER_BUDGET_FIELD_MANAGER = "joulie-power-budget"
ALERTS_FIELD_MANAGER = "joulie-alerts"
SLEEP_FIELD_MANAGER = "joulie-sleep"
CLEANUP_FIELD_MANAGER = "joulie-cleanup"
CLASSIFIER_FIELD_MANAGER = CLASSIFIER

_MAX_NAME = 253
_HASH_CHARS = 8
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")


def profile_name(kind: str, name: str) -> str:
    """Name of a workload's WorkloadProfile: kind and name, ``deployment-web``, made a valid object name if needed."""
    return object_name(f"{kind.lower()}-{name}")


def object_name(node_name: str) -> str:
    """Name of the objects that belong to a node: the node's own name, dots included, if it is a valid object name.

    Any other name is made valid and gets a hash of the original, so that two nodes never share an object name.
    """
    if len(node_name) <= _MAX_NAME and _SUBDOMAIN.fullmatch(node_name):
        return node_name
    digest = hashlib.sha256(node_name.encode()).hexdigest()[:_HASH_CHARS]
    cleaned = re.sub(r"[^a-z0-9]+", "-", node_name.lower()).strip("-")[: _MAX_NAME - _HASH_CHARS - 1]
    return f"{cleaned.rstrip('-') or 'node'}-{digest}"
