"""A reliable stream of bytes between two federators, carried by QoS 0 publications at a foreign broker.

`Tunnels` is one end of all tunnels over one connection to that broker, `Tunnel` the stream of one of them,
and `frames` has the bytes. This is how the document's DATA travels: encapsulated publications, many in one.
"""
