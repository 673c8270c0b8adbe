"""One MQTT broker and one MQTT client, as machines without sockets, clocks or threads."""
