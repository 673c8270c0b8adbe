"""Backlogs: readers that are slow or away, for whom messages wait on the disk of a node with `--data`."""
