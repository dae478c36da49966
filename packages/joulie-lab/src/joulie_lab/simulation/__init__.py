"""Cluster simulation: the domain's scheduling decisions on arrays of thousands of nodes and millions of jobs."""
