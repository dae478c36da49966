"""The kubectl plugin: what the cluster's energy looks like, and why a pod is where it is."""
