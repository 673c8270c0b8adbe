"""A mosquitto.conf as the configuration of a node, and what of it is not honoured."""
