"""Experiments: one trace under several policies, natively or on a control plane, with the same results."""
