"""``joulie experiment``: one trace under several policies, natively or on the real control plane."""
