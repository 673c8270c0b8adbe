"""The node as JSON over HTTP: what its parts show and do, by one table of routes."""
