"""``joulie replay``: a recorded cluster under other policies."""
