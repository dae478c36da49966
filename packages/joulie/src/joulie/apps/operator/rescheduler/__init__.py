"""What would be better off elsewhere, and how GPUs could be shared: recommendations, and evictions if they are on."""
