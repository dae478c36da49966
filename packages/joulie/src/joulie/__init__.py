"""Joulie: the energy brain of Kubernetes."""

__version__ = "0.1.0"
