"""Kubernetes adapter: typed objects, client, watch caches, leader election and events."""
