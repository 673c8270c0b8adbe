"""Experiments on one machine: real programs, and networks between them that behave as asked."""
