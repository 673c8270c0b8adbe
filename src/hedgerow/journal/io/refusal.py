"""Replays of a node without a journal are refused, and what is stored for them is kept."""

from __future__ import annotations

from hedgerow.broker.changes import SubscriptionRecord
from hedgerow.broker.session import Session
from hedgerow.broker.source import Source
from hedgerow.journal.replay import USER_PROPERTY
from hedgerow.mqtt.reasons import Reason
from hedgerow.node.part import Part
from hedgerow.topics import REPLAY


class NoReplays(Source):
    prefix = REPLAY
    user_property = USER_PROPERTY

    def refusal(self, session: Session, topic_filter: str) -> int | None:
        return Reason.IMPLEMENTATION_SPECIFIC_ERROR

    def subscribed(self, session: Session, record: SubscriptionRecord, is_new: bool) -> None:
        pass

    def unsubscribed(self, session: Session, topic_filter: str) -> None:
        pass


class ReplaysRefused(Part):
    async def start(self) -> None:
        self.node.broker.serve(NoReplays())
