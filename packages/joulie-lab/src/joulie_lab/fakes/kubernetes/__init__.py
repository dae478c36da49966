"""An in-memory Kubernetes API server that speaks the real HTTP API, for demos, simulations and tests."""

from joulie_lab.fakes.kubernetes.cluster import FakeCluster

__all__ = ["FakeCluster"]
