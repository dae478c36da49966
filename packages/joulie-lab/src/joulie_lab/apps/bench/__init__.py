"""`joulie bench`: runs the benchmarks, checks their ranges, draws their figures."""
