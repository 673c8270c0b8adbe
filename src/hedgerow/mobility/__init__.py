"""A node's part in mobility: the broker that delegates topics and clients, and the fixed one that serves."""
