"""Nodes that sleep: their states, the forecast of demand, and the decision."""
