"""`hedgerow demo`: a small farm on one machine, and the story that is told of it.

The brokers, the federator beside a stock one and Spark are processes of their own (`farm`, `spark`). Those
who publish and listen are connections of this process (`people`, `robots`): one clock and one `ledger` see
all of them. `story` is what happens, `terminal` how it is told, `run` begins and ends it.
"""
