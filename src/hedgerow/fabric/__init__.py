"""Many nodes: the machines that carry messages beyond one broker. Its parts do not know each other."""
