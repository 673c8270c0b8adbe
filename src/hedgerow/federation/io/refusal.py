"""Neighbours of a node that is in no federation are refused, and what is stored for them is kept.

Where there is a federation, its role takes the place of this one's.
"""

from __future__ import annotations

from hedgerow.federation.neighbours import NeighbourRole
from hedgerow.node.part import Part


class NeighboursRefused(Part):
    async def start(self) -> None:
        self.node.broker.register(NeighbourRole(self.node.broker))
