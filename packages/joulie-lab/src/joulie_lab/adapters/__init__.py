"""Adapters, one technology per module: FMUs, trace files, job tables, worker processes and Dask."""
