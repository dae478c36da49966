"""What Kubernetes' scheduler means by labels, node rules, requests and scores: one place for product and laboratory."""
