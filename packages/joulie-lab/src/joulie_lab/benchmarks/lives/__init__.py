"""Lives of the agent on modelled machines, with faults, in virtual time."""
