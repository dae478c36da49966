"""The classifier: keeps one WorkloadProfile for each workload, from annotations and measured use."""
