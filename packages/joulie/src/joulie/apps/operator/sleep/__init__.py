"""Nodes that sleep: what keeps them awake, the loop that decides, and its metrics."""
