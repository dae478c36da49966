"""The simulation engine: jobs through a cluster under a scheduler, compiled and exact."""

from joulie_lab.simulation.engine.layout import QueueSettings
from joulie_lab.simulation.engine.play import Play, Session, play
from joulie_lab.simulation.schedulers import SCHEDULERS, UnknownSchedulerError

__all__ = ["SCHEDULERS", "Play", "QueueSettings", "Session", "UnknownSchedulerError", "play"]
