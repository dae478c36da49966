"""Published data: where each file is, how it is fetched into the user's cache, and readers of the files."""
