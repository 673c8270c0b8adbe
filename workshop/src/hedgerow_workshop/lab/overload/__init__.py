"""Overload: publishers at full speed at every broker of a federation, readers that are far too slow, and a
node that is killed meanwhile. What was acknowledged may neither be lost nor come twice."""
