"""Readings that travel in several ways between the same hosts, and what each way costs on the wire. What the
experiments of two documents share: [genera] has no server, [zhang] has a broker of UDP sensors."""
