"""Random courses of a small cluster whose nodes sleep, with every fault that the decision must survive.

Source: spec, power budgets, sleep and wake; issue 19, faults.
"""
