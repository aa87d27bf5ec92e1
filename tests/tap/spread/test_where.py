"""Parts of a tensor are sketched at their places, so that their sketches add up."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hypocenter.nouns import Place
from hypocenter.summary.sketch import Placement, sketch
from hypocenter.tap.spread.where import cut


def place(rank, dp, tp):
    groups = {
        "dp": tuple(i * tp + rank % tp for i in range(dp)),
        "tp": tuple(rank // tp * tp + i for i in range(tp)),
    }
    return Place(rank=rank, world_size=dp * tp, groups=groups)


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=3), st.integers(1, 3), st.integers(1, 3),
    st.permutations([0, 1]), st.integers(0, 2**32 - 1),
)  # fmt: skip
def test_sketches_of_all_parts_add_up_to_that_of_the_whole(local, dp, tp, dims, seed):
    axes = {"dp": f"S({dims[0]})", "tp": f"S({dims[1]})"}
    parts = [cut(local, axes, place(rank, dp, tp)) for rank in range(dp * tp)]

    whole = np.random.default_rng(seed).integers(-8, 8, parts[0].shape).astype(np.float64)
    total = sum(
        sketch(
            whole[tuple(slice(o, o + n) for o, n in zip(part.offset, local, strict=True))],
            Placement(shape=part.shape, offset=part.offset),
        )
        for part in parts
    )

    assert np.array_equal(total, sketch(whole))
    assert {part.placement for part in parts} == {f"dp=S({dims[0]}) tp=S({dims[1]})"}


def test_two_axes_along_one_dimension_have_no_known_place():
    found = cut([4, 4], {"dp": "S(0)", "tp": "S(0)"}, place(1, 2, 2))

    assert (found.placement, found.offset) == ("", None)


def test_copies_are_whole_and_flat_shards_cannot_be_sketched():
    copy = cut([4, 4], {"dp": "R"}, place(1, 2, 1))

    assert (copy.is_part, copy.shape) == (False, (4, 4))
