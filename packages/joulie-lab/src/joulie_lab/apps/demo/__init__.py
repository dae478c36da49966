"""The whole loop to look at: a cluster, simulated hardware, every program of Joulie, a live view."""
