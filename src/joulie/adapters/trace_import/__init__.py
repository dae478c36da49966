"""Public traces in their own formats, as jobs."""
