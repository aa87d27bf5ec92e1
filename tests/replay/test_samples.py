"""From a failed step to the rows of the batch that are to blame, and to none when they are not."""

import time

import pytest
import torch

from hypocenter.diagnose.evidence import Evidence, TensorFacts
from hypocenter.nouns import Summary
from hypocenter.replay import samples
from hypocenter.replay.samples import batch_size, named, remedy, rows_of


def leaf(*shape):
    return TensorFacts(name="x", dtype="float32", shape=shape, summary=Summary())


def without(*bad, n_calls=None):
    """A step that is sound as long as none of these rows is in it."""

    def is_sound(kept):
        if n_calls is not None:
            n_calls.append(tuple(kept))
        return not set(bad) & set(kept)

    return is_sound


def test_batch_size_is_what_most_inputs_share():
    assert batch_size([torch.zeros(4, 7), torch.zeros(4), torch.zeros(9)]) == 4
    assert batch_size([torch.zeros(())]) == 0


def test_rows_when_the_first_dimension_is_the_batch_or_a_multiple():
    bad = torch.zeros(4, 3, 5, dtype=torch.bool)
    bad[2, 1, 0] = True
    flat = torch.zeros(4 * 6, 8, dtype=torch.bool)
    flat[6 * 3 + 1] = True

    assert rows_of(bad, 4) == (2,)
    assert rows_of(flat, 4) == (3,)


def test_rows_cannot_be_guessed_from_another_shape():
    assert rows_of(torch.ones(7, 3, dtype=torch.bool), 4) == ()
    assert rows_of(torch.ones((), dtype=torch.bool), 4) == ()


def test_a_guess_is_confirmed_without_the_row_and_with_it_alone():
    calls = []

    found = named(Evidence(), (2,), 4, without(2, n_calls=calls))

    assert (found.samples, found.samples_confirmed, found.n_samples) == ((2,), True, 4)
    assert calls == [(0, 1, 3), (2,)]


def test_a_wrong_guess_is_replaced_by_what_replays_tell():
    found = named(Evidence(), (1,), 6, without(3, 4))

    assert (found.samples, found.samples_confirmed) == ((3, 4), True)


def test_one_bad_row_is_found_in_a_large_batch_by_halves():
    calls = []

    found = named(Evidence(), (), 4096, without(1234, n_calls=calls))

    assert found.samples == (1234,)
    assert len(calls) <= samples.MOST_REPLAYS


@pytest.mark.parametrize(
    "is_sound",
    [
        pytest.param(lambda kept: False, id="bad whatever the batch is"),
        pytest.param(lambda kept: len(kept) < 8, id="a sum over all rows"),
        pytest.param(without(1, 3, 4, 5, 7), id="most rows"),
    ],
)
@pytest.mark.parametrize("guess", [(), (2,)])
def test_no_row_is_blamed_for_what_is_not_its_doing(is_sound, guess):
    found = named(Evidence(), guess, 8, is_sound)

    assert (found.samples, remedy(found)) == ((), None)


def test_a_parameter_has_no_rows():
    found = named(Evidence(leaf=leaf(8), leaf_kind="param"), (2,), 8, without(2))

    assert found.samples == ()


def test_of_a_model_that_wants_the_whole_batch_other_rows_stand_in():
    def is_sound(kept):
        if len(kept) != 4:
            raise RuntimeError("shape")
        return 1 not in kept

    found = named(Evidence(), (1,), 4, is_sound)

    assert found.samples == (1,)
    assert remedy(found) is None  # leaving it out was not tried


def test_where_nothing_can_be_replayed_only_rows_of_the_batch_itself_are_named():
    def refuses(kept):
        raise RuntimeError("shape")

    assert named(Evidence(), (1,), 4, refuses).samples == ()
    assert named(Evidence(leaf=leaf(4, 3), leaf_kind="batch"), (1,), 4, refuses).samples == (1,)
    assert named(Evidence(leaf=leaf(16), leaf_kind="batch"), (1,), 4, refuses).samples == ()


def test_a_search_that_takes_too_long_is_given_up(monkeypatch):
    monkeypatch.setattr(samples, "PATIENCE_S", -time.perf_counter())

    assert named(Evidence(), (), 8, without(2)).samples == ()


def test_the_remedy_is_exactly_what_was_replayed():
    rows = (3, 4, 5, 9, 20, 21, 33, 41, 52, 63)
    found = remedy(named(Evidence(), rows, 128, without(*rows)))

    assert found is not None
    assert found.targets == tuple(str(row) for row in rows)
    assert found.text == "leave out batch rows 3 to 5, 9, 20, 21, 33, 41, 52, 63"


def test_many_rows_are_no_remedy_unless_the_batch_itself_is_bad():
    rows = (1, 3, 6)

    computed = named(Evidence(), rows, 8, without(*rows))
    handed_in = named(Evidence(leaf=leaf(8, 2), leaf_kind="batch"), rows, 8, without(*rows))

    assert (computed.samples, remedy(computed)) == (rows, None)
    assert remedy(handed_in).targets == ("1", "3", "6")
