"""Step-by-step physics of simulated nodes: power, temperature and progress of the pods on them.

The caller advances time in steps, and may start and stop pods and change caps between them, as a real scheduler and
real agents do. `joulie simulate` instead runs thousands of nodes for days with jobs known in advance. Both use the same
physics of `joulie.domain.power`.
"""
