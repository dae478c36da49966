"""Recommends workloads to move and modes of GPU sharing, and evicts pods if that is enabled."""
