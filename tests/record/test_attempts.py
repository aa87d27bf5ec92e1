"""Of a step that two attempts recorded the later one counts."""

import pyarrow as pa

from hypocenter.nouns import Attempt, Place
from hypocenter.record.attempts import Span, before, cuts, numbers_of, sentences
from hypocenter.record.gather import Want


def place(*attempts):
    return Place(attempts=tuple(Attempt(number=n, host=host, pid=pid) for n, host, pid in attempts))


def test_only_processes_that_the_launcher_numbered_are_attempts():
    assert numbers_of(place((0, "node-1", 7), (1, "node-2", 9))) == {"node_1-7": 0, "node_2-9": 1}
    assert numbers_of(place((0, "a", 7), (0, "a", 8))) == {}  # two programs of one script
    assert numbers_of(place((0, "a", 7))) == {}
    assert numbers_of(None) == {}


def test_an_attempt_counts_up_to_where_a_later_one_begins():
    numbers = {"a": 0, "b": 1, "c": 2}
    spans = {
        "a": Span(number=0, first=0, last=6),
        "b": Span(number=1, first=4, last=9),
        "c": Span(number=2, first=2, last=12),
    }

    assert cuts(numbers, spans) == {"a": 2, "b": 2}
    assert cuts(numbers, {"a": spans["a"]}) == {}  # the others completed no step


def test_rows_of_later_steps_are_left_out_beside_what_is_not_wanted():
    batch = pa.record_batch({"step": [0, 1, 2, 3], "site": ["a", "b", "a", "a"]})
    want = Want(columns=("site",), where=lambda b: pa.array([s == "a" for s in b["site"].to_pylist()]))

    early = before(want, 3)

    assert batch.filter(early.where(batch))["step"].to_pylist() == [0, 2]
    assert early.reads == ("site", "step")


def test_a_sentence_says_where_an_attempt_began_and_how_far_the_one_before_was():
    spans = {
        0: (Span(number=0, first=0, last=7), Span(number=1, first=4, last=9)),
        2: (Span(number=0, first=0, last=6), Span(number=1, first=4, last=9)),
    }

    assert sentences(spans) == ["attempt 1 began at step 4 (rank 2 had ended at step 6, rank 0 at step 7)"]
    assert sentences({0: (Span(number=1, first=0, last=3),)}) == []
