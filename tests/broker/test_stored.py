"""What waits for a session in the log: positions beside a plain set of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hedgerow.broker.stored import MAX_RUNS, MAX_SPAN, StoredQueue

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 5), st.integers(0, 3)),
        st.tuples(
            st.just("add"), st.sampled_from([1, MAX_SPAN - 1, MAX_SPAN, 3 * MAX_SPAN]), st.integers(0, 3)
        ),
        st.tuples(st.just("remove"), st.integers(0, 40), st.integers(1, 30)),
    ),
    max_size=60,
)


def positions(queue: StoredQueue, begin: int = 0) -> list[int]:
    return [
        position
        for chunk in queue.chunks
        for first, count in chunk.runs_from(begin)
        for position in range(first, first + count)
    ]


@given(STEPS)
def test_it_holds_what_a_set_would(steps: list[tuple[str, int, int]]) -> None:
    queue, model, end = StoredQueue(), set[int](), 1
    for name, number, other in steps:
        if name == "add":
            gap, flags = number - 1, 1 + other % 2
            first, count = end + gap, 1 + other
            queue.add(first, count, flags, (), None, 10 * count, 0.0)
            model.update(range(first, first + count))
            end = first + count
        elif model:
            first = sorted(model)[min(number, len(model) - 1)]
            gone = {each for each in model if first <= each < first + other}
            removed = [run for _, runs in queue.remove(first, other) for run in runs]
            assert {each for begin, count in removed for each in range(begin, begin + count)} == gone
            model -= gone
        assert positions(queue) == sorted(model)
        assert (len(queue), queue.count) == (len(model), len(model))
        assert all(chunk.count for chunk in queue.chunks)
        assert all(each in queue for each in model)
        assert end not in queue
    assert queue.bytes == 0 or model
    if model:
        middle = sorted(model)[len(model) // 2]
        assert positions(queue, middle) == [each for each in sorted(model) if each >= middle]


def test_what_comes_in_a_row_takes_one_chunk_and_what_comes_here_and_there_few_bytes() -> None:
    queue = StoredQueue()
    for position in range(1, 10_001):
        queue.add(position, 1, 1, (), None, 64, 0.0)
    assert [len(chunk.runs) for chunk in queue.chunks] == [2]
    sparse = StoredQueue()
    for number in range(10_000):
        sparse.add(1 + 100 * number, 1, 1, (), None, 64, 0.0)
    assert len(sparse.chunks) <= 10_000 / MAX_RUNS + 1_000_000 / MAX_SPAN + 1


def test_other_options_begin_a_chunk() -> None:
    queue = StoredQueue()
    group = object()
    for position, (flags, identifiers, shared) in enumerate(
        [(1, (), None), (2, (), None), (2, (7,), None), (2, (7,), group), (2, (7,), group)], 1
    ):
        queue.add(position, 1, flags, identifiers, shared, 1, 0.0)
    assert [(chunk.flags, chunk.identifiers, chunk.group, chunk.count) for chunk in queue.chunks] == [
        (1, (), None, 1),
        (2, (), None, 1),
        (2, (7,), None, 1),
        (2, (7,), group, 2),
    ]


def test_pages_go_on_where_the_last_one_ended() -> None:
    queue = StoredQueue()
    for position in (1, 2, 3, 7, 8, 20):
        queue.add(position, 1, 1 + (position > 7), (), None, 1, 0.0)
    assert [run for _, run in queue.runs_after(0, 100, 4)] == [(1, 3), (7, 1)]
    assert [run for _, run in queue.runs_after(8, 100, 4)] == [(8, 1), (20, 1)]
    assert [run for _, run in queue.runs_after(2, 8, 10)] == [(2, 2), (7, 1)]
