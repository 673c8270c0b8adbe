"""Mobile brokers are refused by a node that does not support any.

Where there is a fixed or a mobile broker, its role takes the place of this one's.
"""

from __future__ import annotations

from hedgerow.mobility.roles import MobileBrokerRole
from hedgerow.node.part import Part


class MobileBrokersRefused(Part):
    async def start(self) -> None:
        self.node.broker.register(MobileBrokerRole(self.node.broker))
