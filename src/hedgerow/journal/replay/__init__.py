"""Replay: clients of MQTT read what the journal has, from wherever they like, and then what comes next."""

USER_PROPERTY = "hedgerow-replay"
"""Of messages that a replay gives."""
