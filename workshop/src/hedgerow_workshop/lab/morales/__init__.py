"""The experiment of the document on hot topics in mobile brokers (Morales Domínguez and others, 2013).

A mobile broker delegates topics to a fixed one over LTE or WiMAX, by the hot-topic algorithm and by the naïve
one; and the document's farm, with sensors that leave and enter coverage. `hedgerow lab run morales` does it.
"""
