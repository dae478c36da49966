"""``joulie workload``: job traces made, imported, described, checked, cut and stretched."""
