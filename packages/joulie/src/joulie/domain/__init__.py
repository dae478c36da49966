"""What Joulie knows and decides. Pure: no I/O, no clock, no global random state, no Kubernetes shapes."""
