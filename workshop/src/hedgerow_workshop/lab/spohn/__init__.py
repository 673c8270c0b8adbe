"""The experiment of Spohn (2021): nine brokers in a grid, federated and not.

`grid` is the network and the document's figures; `network` makes its links, `nodes` and `clients` run real
programs on them; `delays` and `failures` carry the runs out and keep a `record` of each; `measure` reads
records, `report` and `drawing` show them, `experiment` puts all together.
"""
