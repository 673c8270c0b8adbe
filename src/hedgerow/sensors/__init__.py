"""UDP publish/subscribe for sensors: an 8-byte header, and the exchange between its users and a broker."""
