"""The blame walk on hand-made traces."""

from hypothesis import given
from hypothesis import strategies as st

from hypocenter.diagnose.origin import blame, killed_infinities
from hypocenter.optrace import LITERAL_NEGINF, NAN, NEGINF, POSINF, Edge, TracedOp


def op(index, name, bits=0, *inputs, **more):
    return TracedOp(index=index, op=f"aten.{name}.default", bits=bits, inputs=inputs, **more)


def edge(producer, bits=0):
    return Edge(producer=producer, bits=bits)


def test_overflow_is_blamed_and_not_the_norm_where_nan_appears():
    trace = [
        op(0, "mm", POSINF, edge(-1), edge(-2)),
        op(1, "add", POSINF, edge(0, POSINF), edge(-3)),
        op(2, "rsqrt", 0, edge(1, POSINF)),
        op(3, "mul", NAN, edge(1, POSINF), edge(2)),
        op(4, "nll_loss", NAN, edge(3, NAN)),
    ]

    found = blame(trace, [edge(4, NAN)])

    assert found is not None
    assert (found.origin, found.leaf, found.nan_maker) == (0, None, 3)
    assert found.path == (0, 1, 3, 4)
    assert found.killed == ()


def test_a_value_that_was_discarded_is_listed_not_blamed():
    trace = [
        op(0, "log", NEGINF, edge(-1)),
        op(1, "where", 0, edge(0, NEGINF), edge(-2)),
        op(2, "mm", POSINF, edge(1), edge(-3)),
        op(3, "loss", NAN, edge(2, POSINF)),
    ]

    found = blame(trace, [edge(3, NAN)])

    assert found is not None
    assert found.origin == 2
    assert found.killed == (0,)


def test_a_masks_constants_are_not_followed():
    trace = [
        op(0, "masked_fill", LITERAL_NEGINF, edge(-1)),
        op(1, "_softmax", NAN, edge(0, LITERAL_NEGINF)),
        op(2, "bmm", NAN, edge(1, NAN), edge(-2)),
    ]

    found = blame(trace, [edge(2, NAN)])

    assert found is not None
    assert found.origin == 1
    assert found.nan_maker == 1


def test_a_real_overflow_under_a_mask_is_followed():
    trace = [
        op(0, "bmm", POSINF, edge(-1), edge(-2)),
        op(1, "add", POSINF | LITERAL_NEGINF, edge(0, POSINF), edge(-3, LITERAL_NEGINF)),
        op(2, "_softmax", NAN, edge(1, POSINF | LITERAL_NEGINF)),
    ]

    found = blame(trace, [edge(2, NAN)])

    assert found is not None
    assert found.origin == 0


def test_a_bad_leaf_is_the_origin():
    trace = [op(0, "sub", NAN, edge(-1), edge(-2, NAN)), op(1, "pow", NAN, edge(0, NAN))]

    found = blame(trace, [edge(1, NAN)])

    assert found is not None
    assert (found.origin, found.leaf, found.path) == (None, 1, (0, 1))


def test_a_product_with_exact_zeros_on_the_path_is_reported():
    trace = [
        op(0, "sub", POSINF, edge(-1), edge(-2, POSINF)),
        op(1, "mul", NAN, edge(0, POSINF), edge(-3), zero_factor=True),
        op(2, "sum", NAN, edge(1, NAN)),
    ]

    found = blame(trace, [edge(2, NAN)])

    assert found is not None
    assert (found.leaf, found.zero_factor) == (1, 1)


def test_the_earliest_of_several_origins_is_first_and_the_others_are_kept():
    trace = [
        op(0, "exp", POSINF, edge(-1)),
        op(1, "log", NEGINF, edge(-2)),
        op(2, "add", NAN, edge(0, POSINF), edge(1, NEGINF)),
    ]

    found = blame(trace, [edge(2, NAN)])

    assert found is not None
    assert found.origin == 0
    assert found.others == (1,)


def test_nothing_is_blamed_when_the_target_is_clean_or_only_masked():
    trace = [op(0, "masked_fill", LITERAL_NEGINF, edge(-1))]

    assert blame(trace, [edge(0, LITERAL_NEGINF)]) is None
    assert blame(trace, []) is None


def test_nan_inputs_are_followed_before_infinite_ones():
    trace = [
        op(0, "exp", POSINF, edge(-1)),
        op(1, "sqrt", NAN, edge(-2)),
        op(2, "mul", NAN, edge(0, POSINF), edge(1, NAN)),
    ]

    found = blame(trace, [edge(2, NAN)])

    assert found is not None
    assert found.origin == 1


def test_an_overflow_hidden_by_a_reciprocal_is_found():
    trace = [
        op(0, "sum", POSINF, edge(-1)),
        op(1, "add", POSINF, edge(0, POSINF)),
        op(2, "reciprocal", 0, edge(1, POSINF)),
    ]

    (killed,) = killed_infinities(trace)

    assert (killed.origin, killed.killer, killed.zeroed) == (0, 2, True)


def test_softmax_of_minus_infinity_hides_nothing():
    trace = [op(0, "add", NEGINF, edge(-1)), op(1, "_softmax", 0, edge(0, NEGINF))]

    assert killed_infinities(trace) == ()


def test_an_overflow_that_reached_a_nan_is_not_hidden():
    trace = [op(0, "mm", POSINF, edge(-1)), op(1, "sub", NAN, edge(0, POSINF))]

    assert killed_infinities(trace) == ()


@st.composite
def chains(draw):
    """A random clean graph with one op that goes bad, whose badness spreads to every reader."""
    n = draw(st.integers(2, 30))
    bad = draw(st.integers(0, n - 2))
    reads = [draw(st.lists(st.integers(0, i - 1), max_size=3)) if i else [] for i in range(n)]
    tainted = {bad}
    trace = []
    for index in range(n):
        inputs = [edge(p, NAN if p in tainted else 0) for p in reads[index]] if index != bad else [edge(-1)]
        is_bad = index == bad or any(e.bits for e in inputs)
        if is_bad:
            tainted.add(index)
        trace.append(op(index, "add", NAN if is_bad else 0, *inputs))
    return trace, bad, tainted


@given(chains())
def test_whatever_the_graph_the_planted_op_is_blamed_from_every_tainted_value(case):
    trace, bad, tainted = case

    for target in tainted:
        found = blame(trace, [edge(target, NAN)])

        assert found is not None
        assert found.origin == bad
        assert found.path[0] == bad
        assert found.path[-1] == target
