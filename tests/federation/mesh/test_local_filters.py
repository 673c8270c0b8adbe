"""Of a broker's own filters exactly those are announced that no other one covers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hedgerow.federation.mesh.local_filters import LocalFilters
from hedgerow.topics import covers

filters = st.sampled_from(
    ["#", "+", "+/#", "a", "a/#", "a/+", "a/b", "a/b/#", "+/b", "b/c", "a/+/c", "a/b/c"]
)


@given(st.lists(st.tuples(st.booleans(), filters), max_size=40))
def test_against_the_naive_model(steps: list[tuple[bool, str]]) -> None:
    local = LocalFilters()
    model: set[str] = set()
    told: set[str] = set()
    for adds, topic_filter in steps:
        new, gone = local.add(topic_filter) if adds else local.remove(topic_filter)
        (model.add if adds else model.discard)(topic_filter)
        assert told.isdisjoint(new)
        assert told.issuperset(gone)
        told = (told | set(new)) - set(gone)
        expected = {
            narrow for narrow in model if not any(wide != narrow and covers(wide, narrow) for wide in model)
        }
        assert told == local.announced == expected
        assert len(local) == len(model)
        assert (topic_filter in local) == adds
