"""Power limits: which limit suits a job, and how servers share an oversubscribed feed."""
