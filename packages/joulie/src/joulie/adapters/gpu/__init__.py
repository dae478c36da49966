"""Backends of the host's GPUs: power limits, power and energy."""
