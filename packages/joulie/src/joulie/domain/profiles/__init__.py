"""Workload profiles: from hints and measured use to what steers policy, placement and rescheduling."""
