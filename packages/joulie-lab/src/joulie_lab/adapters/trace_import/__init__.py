"""Public traces in their own formats, as jobs.

Each module has a `jobs` function. It yields, in order of submission where the source promises none, a `SourceJob` for
each job, an `ImportProblem` for each line that is broken and a `LeftOut` for each that says itself that it is no job
that ran. `source_jobs.trace_jobs` makes their pods.
"""
