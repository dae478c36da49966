"""The scheduler extender: answers kube-scheduler from twins that watches keep in memory."""
