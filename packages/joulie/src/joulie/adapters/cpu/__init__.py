"""Backends of the host's CPUs: model and topology, power limits, energy counters and frequency limits."""
