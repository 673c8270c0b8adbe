"""The monitor that a mobile broker ranks topics by, and the plan that it may be told to follow instead."""

from __future__ import annotations

from hedgerow.hot.hot_topics import HotTopics
from hedgerow.hot.monitor import Monitor
from hedgerow.hot.naive import Naive
from hedgerow.hot.plan_codec import decode_plan
from hedgerow.message import Message
from hedgerow.mobility.events import PlanRefused
from hedgerow.mobility.settings import MobileSettings


def make_monitor(settings: MobileSettings) -> Monitor:
    if settings.algorithm == "naive":
        return Naive(settings.rotation)
    return make_hot_topics(settings)


def make_hot_topics(settings: MobileSettings) -> HotTopics:
    return HotTopics(settings.x_s, settings.y_s, settings.share, settings.capacity, settings.score)


def follow_plan(monitor: Monitor, message: Message, now: float) -> PlanRefused | None:
    """The plan of that message from now on; without a payload it is none."""
    if not message.payload:
        monitor.follow(None, now)
        return None
    plan = decode_plan(message.payload, now)
    if isinstance(plan, str):
        return PlanRefused(plan)
    return None if monitor.follow(plan, now) else PlanRefused("it is out of date, or an older version")
