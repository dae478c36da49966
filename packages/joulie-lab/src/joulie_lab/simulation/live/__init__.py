"""Nodes that live in simulated time: power, temperature and work of whatever pods are on them, one step at a time.

`joulie simulate` plays thousands of nodes for days and knows its jobs; here time comes in steps from outside, pods come
and go as a scheduler pleases, and caps change while they run. Both use the same physics of `joulie.domain.power`.
"""
