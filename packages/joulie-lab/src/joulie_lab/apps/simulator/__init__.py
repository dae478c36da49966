"""The simulator service: simulates the power, heat and work of KWOK nodes."""
