"""Published data: addresses of the files, download into the user's cache, and readers."""
