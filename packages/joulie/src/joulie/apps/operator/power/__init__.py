"""Power of nodes, of pods and of the building, from the sources beside this package."""
