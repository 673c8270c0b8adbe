"""Bridges between brokers: what the text of a bridge says, in Mosquitto's words."""
