"""The live demo: a cluster with simulated hardware, every program of Joulie, a view in the terminal."""
