"""One technology a module: FMUs, trace files, job tables, worker processes and Dask."""
