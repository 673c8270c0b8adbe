"""Topologies: which bridges keep a set of brokers connected, and the agent that arranges them."""
