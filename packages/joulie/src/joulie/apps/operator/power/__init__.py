"""Where the operator gets the power of nodes, of pods and of the building from."""
