"""The compiled simulation engine: runs jobs on a cluster under a scheduler, bit-identical to the NumPy reference."""

from joulie_lab.simulation.engine.layout import QueueSettings
from joulie_lab.simulation.engine.play import EngineResult, Session, simulate
from joulie_lab.simulation.schedulers import SCHEDULERS, UnknownSchedulerError

__all__ = ["SCHEDULERS", "EngineResult", "QueueSettings", "Session", "UnknownSchedulerError", "simulate"]
