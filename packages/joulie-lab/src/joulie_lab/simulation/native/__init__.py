"""The simulator without Kubernetes, event by event, with the decisions of the programs."""
