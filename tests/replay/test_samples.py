"""From element indices to batch rows."""

import torch

from hypocenter.replay.samples import batch_size, confirmed, rows_alone, rows_of


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


def test_rows_cannot_be_told_from_another_shape():
    assert rows_of(torch.ones(7, 3, dtype=torch.bool), 4) == ()
    assert rows_of(torch.ones((), dtype=torch.bool), 4) == ()


def test_rows_alone_and_confirmation():
    def finite_with(rows):
        return 2 not in rows

    assert rows_alone(4, finite_with) == (2,)
    assert confirmed((2,), 4, finite_with) is True
    assert confirmed((1,), 4, finite_with) is False
    assert confirmed((0, 1, 2, 3), 4, finite_with) is None


def test_a_model_that_wants_the_whole_batch_gives_no_answer():
    def refuses(rows):
        raise RuntimeError("shape")

    assert confirmed((1,), 4, refuses) is None
