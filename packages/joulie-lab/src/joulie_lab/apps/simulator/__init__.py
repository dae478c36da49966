"""The simulator service: KWOK nodes that draw power, heat up and work as real ones would."""
