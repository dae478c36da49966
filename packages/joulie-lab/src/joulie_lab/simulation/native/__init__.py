"""Discrete-event simulation without Kubernetes that makes the same decisions as Joulie's programs."""
