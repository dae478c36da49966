"""Joulie's benchmarks: the measurements, and the committed ranges of their figures."""
