"""Names of the Compute Gardener Scheduler and of Joulie on pods, namespaces and nodes.

Source: the documentation of the Compute Gardener Scheduler; users switch over without editing a manifest.
"""

from __future__ import annotations

SCHEDULER_NAME = "compute-gardener-scheduler"
GATE = "joulie.io/grid"
"""Scheduling gate of a pod that waits for the grid."""

BUDGET_GATE = "joulie.io/budget"
"""Scheduling gate of a pod that waits for an EnergyBudget."""

PREFIX = "compute-gardener-scheduler.kubernetes.io/"
POLICY_PREFIX = PREFIX + "policy-"
WORKLOAD_PREFIX = PREFIX + "workload-"
POLICIES_LABEL = PREFIX + "energy-policies"
POLICIES_ENABLED = "enabled"
WORKLOAD_TYPE_LABEL = PREFIX + "workload-type"

# What a pod asks for.
SKIP = PREFIX + "skip"
CARBON_ENABLED = PREFIX + "carbon-enabled"
CARBON_THRESHOLD = PREFIX + "carbon-intensity-threshold"
PRICE_THRESHOLD = PREFIX + "price-threshold"
MAX_DELAY = PREFIX + "max-scheduling-delay"
RUNTIME_HOURS = PREFIX + "estimated-runtime-hours"
ENERGY_BUDGET_KWH = PREFIX + "energy-budget-kwh"
ENERGY_BUDGET_ACTION = PREFIX + "energy-budget-action"
GPU_WORKLOAD_TYPE = PREFIX + "gpu-workload-type"
MAX_POWER_WATTS = PREFIX + "max-power-watts"
MIN_EFFICIENCY = PREFIX + "min-efficiency"
PUE = PREFIX + "pue"
GPU_PUE = PREFIX + "gpu-pue"
DEFER = "joulie.io/grid-defer"
MODE = "joulie.io/grid-mode"
RUNTIME = "joulie.io/estimated-runtime"
LEARNED_RUNTIME = "joulie.io/learned-runtime"
"""Written by the controller on what it holds: the runtime learned from earlier runs, and of how many."""
INTERRUPTIBLE = "joulie.io/interruptible"
ZONE = "joulie.io/grid-zone"
DATA_ZONE = "joulie.io/data-zone"
DATA_GB = "joulie.io/data-gb"
ENERGY_KWH = "joulie.io/estimated-energy-kwh"
FUNCTIONAL_UNITS = "joulie.io/functional-units"
"""What a pod delivers when it succeeds: ``5000 images``."""

# What is written on a pod that was held, and when it runs.
INITIAL_CARBON_INTENSITY = PREFIX + "initial-carbon-intensity"
INITIAL_ELECTRICITY_RATE = PREFIX + "initial-electricity-rate"
CARBON_DELAY_TIMESTAMP = PREFIX + "carbon-delay-timestamp"
PRICE_DELAY_TIMESTAMP = PREFIX + "price-delay-timestamp"
HELD_KEYS = (INITIAL_CARBON_INTENSITY, INITIAL_ELECTRICITY_RATE, CARBON_DELAY_TIMESTAMP, PRICE_DELAY_TIMESTAMP)
BIND_TIMESTAMP = PREFIX + "bind-timestamp"
BIND_CARBON_INTENSITY = PREFIX + "bind-time-carbon-intensity"
BIND_ELECTRICITY_RATE = PREFIX + "bind-time-electricity-rate"

HOLDOUT = "joulie.io/grid-holdout"
"""Written by the controller on a workload that asks to wait, by chance: ``waits 0.05`` or ``left-alone 0.05``, with the
share that is left alone."""

TRIAL = "joulie.io/grid-trial"
"""Written by the controller on a workload that asks to wait, in a trial of deferral: ``july waits nightly`` or
``july at-once nightly``, with the name by which the workload was drawn."""

CHOSEN_ZONE = "joulie.io/grid-chosen-zone"
"""Zone that was chosen for a pod that may run in several; the extender prefers its nodes."""

# What an autoscaler asks for, and what is written on it.
CARBON_MAX_REPLICAS = "joulie.io/carbon-max-replicas"
PRICE_MAX_REPLICAS = "joulie.io/price-max-replicas"
MAX_REPLICAS_FLOOR = "joulie.io/max-replicas-floor"
MAX_REPLICAS_EXEMPT = "joulie.io/max-replicas-exempt"
REPLICA_CEILING = "joulie.io/replica-ceiling"
"""Record of a lowered maximum, with the original one."""

# What a dry run writes.
DRY_RUN_PREFIX = PREFIX + "dry-run-"

# What budgets write.
BUDGET_EXCEEDED = PREFIX + "energy-budget-exceeded"
BUDGET_EXCEEDED_BY = PREFIX + "energy-budget-exceeded-by"
ENERGY_USAGE_KWH = PREFIX + "energy-usage-kwh"
