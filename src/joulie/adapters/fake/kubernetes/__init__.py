"""An in-memory Kubernetes API server that speaks the real HTTP API, for demos, simulations and tests."""

from joulie.adapters.fake.kubernetes.cluster import FakeCluster

__all__ = ["FakeCluster"]
