"""Regular topics: the document's word for what is federated. The others each broker keeps for itself."""

from __future__ import annotations

from hedgerow.topics import split_shared, validate_filter

# The broker's own affairs, and those of Hedgerow's parts at a foreign broker: each broker has its own. To
# federate the second would have federators tell each other of what they tell each other.
LOCAL_PREFIXES = ("$", "hedgerow/")


def regular_filter(topic_filter: str) -> str | None:
    """The filter without `$share/GROUP/`, None for local topics; raises TopicError if it is no filter."""
    _, inner = split_shared(topic_filter)
    validate_filter(inner)
    return None if inner.startswith(LOCAL_PREFIXES) else inner
