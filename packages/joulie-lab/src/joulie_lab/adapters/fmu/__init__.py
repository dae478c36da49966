"""Functional Mock-up Units: runs FMI 2.0 and 3.0 co-simulation FMUs as cooling plants, and exports the built-in one."""

from joulie_lab.adapters.fmu.plant import FmuPlant
from joulie_lab.adapters.fmu.variables import FmuMapping

__all__ = ["FmuMapping", "FmuPlant"]
