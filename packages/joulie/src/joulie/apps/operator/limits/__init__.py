"""The search for power limits of the GPUs of workloads."""
