"""`joulie bench`: runs the benchmarks, checks their results against committed ranges, and draws figures."""
