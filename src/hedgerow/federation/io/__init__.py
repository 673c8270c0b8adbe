"""Federation on real sockets: what people configure, how nodes find each other, and their links."""
