"""What experiments with real programs share: brokers and clients, what is recorded and measured of a run, and
what an experiment leaves: rows, records, journals and a report."""
