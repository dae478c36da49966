"""What decisions need from the world, as Protocols.

Each names its contract, units and errors; adapters implement them, `joulie.apps` puts the two together.
"""
