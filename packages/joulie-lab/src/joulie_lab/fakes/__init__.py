"""A Kubernetes cluster in memory: API server, scheduler and kubelet, for the demo, the simulator and tests."""
