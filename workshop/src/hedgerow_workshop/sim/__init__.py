"""A virtual network for machines: thousands of them in one process, on a virtual clock.

A run is a pure function of its parameters and its seed. Nothing here reads a clock or throws dice that were
not seeded (`chance`), events of the same moment happen in the order in which they were planned (`events`),
and no result depends on the order of a set. `network` joins machines by `links`; `topologies` says who is
whose neighbour, `graphs` what can be reached, `faults` what goes wrong. `broker` is a node of the federation
with nothing but its routing, `measurements` finds out what such nodes do, `simulation` runs a network of
them, `configuration` one of real federators, and `filters` one with many filters.
"""
