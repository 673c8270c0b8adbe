"""The client's API, and what carries it: `connect` is where it begins."""
