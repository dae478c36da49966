"""An in-memory Kubernetes cluster (API server, scheduler and kubelet) for the demo, the simulator and tests."""
