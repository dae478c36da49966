"""The operator: plans power profiles, guards drains, keeps the twins of all nodes."""
