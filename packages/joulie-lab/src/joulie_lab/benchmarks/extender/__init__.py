"""Response times of the scheduler extender (benchmark B6), compared with an extender that returns constants."""
