"""Federation on real sockets: how nodes find each other, and a sidecar's bridge to its broker."""
