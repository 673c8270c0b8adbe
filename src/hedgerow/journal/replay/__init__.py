"""Replay: clients of MQTT read what the journal has, from wherever they like, and then what comes next."""
