"""The benchmarks that Joulie is judged by: what is measured, and the ranges that the figures must stay in."""
