"""Energy, emissions and cost of pods from samples of their power."""
