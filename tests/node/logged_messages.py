"""Messages as hypothesis finds them, with all that the store and the log are to give back."""

from __future__ import annotations

from hypothesis import strategies as st

from hedgerow.message import Message, MessageId

text = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20)
topics = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=20)
message_properties = st.fixed_dictionaries(
    {},
    optional={
        "payload_format_indicator": st.integers(0, 1),
        "message_expiry_interval": st.integers(0, 2**32 - 1),
        "content_type": text,
        "response_topic": topics,
        "correlation_data": st.binary(max_size=20),
        "user_property": st.lists(st.tuples(text, text), min_size=1, max_size=3).map(tuple),
    },
)
messages = st.builds(
    Message,
    topic=topics,
    payload=st.binary(max_size=200),
    qos=st.integers(0, 2),
    retain=st.booleans(),
    properties=message_properties,
    id=st.none()
    | st.builds(MessageId, text.filter(bool), st.integers(0, 2**63 - 1), st.integers(0, 2**63 - 1)),
    expires_at=st.none() | st.floats(0, 1e11),
    published_at=st.none() | st.floats(1e-6, 1e11),
)
