"""Power limits: which one suits a job, and how servers share a feed that cannot serve them all at once."""
