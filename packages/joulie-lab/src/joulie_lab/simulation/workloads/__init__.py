"""Workloads as traces of jobs: generated, described, cut and stretched."""
