"""Hardware facts: CPU and GPU models, where each number comes from, and the catalogue that recognises them."""

from joulie.domain.hardware.builtin import BUILTIN_CATALOGUE
from joulie.domain.hardware.catalogue import AmbiguousNameError, Catalogue, Match, Quality, normalised
from joulie.domain.hardware.models import CapRange, CpuModel, Evidence, GpuModel, HardwareModelError, Provenance

__all__ = [
    "BUILTIN_CATALOGUE",
    "AmbiguousNameError",
    "CapRange",
    "Catalogue",
    "CpuModel",
    "Evidence",
    "GpuModel",
    "HardwareModelError",
    "Match",
    "Provenance",
    "Quality",
    "normalised",
]
