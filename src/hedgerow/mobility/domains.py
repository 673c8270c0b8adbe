"""Domains: what stands in front of the topics by which mobile and fixed brokers write to each other."""

from __future__ import annotations

from hedgerow.errors import TopicError
from hedgerow.topics import validate_name

MAX_DOMAIN_BYTES = 1_024  # Each publication between the brokers has it in its topic.


def is_domain(text: str) -> bool:
    """Can it stand in front of coordination topics?"""
    try:
        validate_name(text)
    except TopicError:
        return False
    is_whole = not text.endswith("/") and not text.startswith(("/", "$"))
    return is_whole and len(text.encode()) <= MAX_DOMAIN_BYTES
