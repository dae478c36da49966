"""Imports public traces from their own formats.

Each module has a `jobs` function. It yields a `SourceJob` for each job, an `ImportProblem` for each invalid line, and a
`LeftOut` for each valid line that is not a job that ran. Jobs are sorted by submission if the source does not guarantee
an order. `source_jobs.trace_jobs` creates their pods.
"""
