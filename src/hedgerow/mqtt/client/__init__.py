"""One MQTT client: `client.Client` is the machine, and what the shell calls."""
