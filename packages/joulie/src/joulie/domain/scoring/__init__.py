"""Where a pod should run: formulas, the published schedulers, the extender's decision."""
