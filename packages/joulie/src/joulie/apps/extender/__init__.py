"""The scheduler extender: answers kube-scheduler from NodeTwins held in watch caches."""
