"""The built-in catalogue: the CPUs and GPUs that clouds and vendors ship, each figure with its source."""

from __future__ import annotations

from joulie.domain.hardware.builtin_cpus import builtin_cpus
from joulie.domain.hardware.builtin_gpus import builtin_gpus
from joulie.domain.hardware.catalogue import Catalogue

BUILTIN_CATALOGUE = Catalogue(builtin_cpus(), builtin_gpus())
"""The models that Joulie ships with."""
