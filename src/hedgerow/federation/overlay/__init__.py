"""Who is whose neighbour: an overlay that builds, repairs and shortens itself.

`Overlay` is one node's machine, in the manner of HyParView (Leitão, Pereira, Rodrigues 2007). Each node keeps
a small active view, whose links are open and symmetric, and a larger passive view of nodes to turn to.
"""
