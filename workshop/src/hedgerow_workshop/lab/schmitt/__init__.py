"""The experiment of Schmitt, Carlier and Renault (2018): of five brokers in a star, three go and return.

`timeline` is what happens when, `run` carries it out once with real processes (`brokers`, `agent`, `clients`)
and keeps a `record`, `measure` reads records, `report` shows them, `experiment` puts all together.
"""
