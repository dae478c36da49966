"""Functional Mock-up Units: any FMI 2.0 or 3.0 co-simulation FMU as a plant, and the built-in plant as an FMU."""

from joulie_lab.adapters.fmu.plant import FmuPlant
from joulie_lab.adapters.fmu.variables import FmuMapping

__all__ = ["FmuMapping", "FmuPlant"]
