"""Mobile and fixed brokers on real sockets: what people configure, their links, and the relay."""
