"""One MQTT broker: `broker.Broker` is the machine, and what the shell calls."""
