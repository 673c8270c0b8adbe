"""A node: machines of `mqtt` and `fabric` put together, without sockets."""
