"""Kubernetes: typed objects, client, caches, leases and events."""
