"""The agent: discovers a node's hardware, enforces the caps of its NodeTwin, and reports the results."""
