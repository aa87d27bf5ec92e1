"""Names of mesh dimensions as axes, and the groups of a rank, without any process group."""

from typing import Any

import pytest

from hypocenter.nouns import Coords
from hypocenter.tap.topology.device_mesh import Mesh, axis_of, layout
from hypocenter.tap.topology.layout import Layout, merged


@pytest.mark.parametrize(
    ("name", "axis"),
    [
        ("dp", "dp"), ("dp_replicate", "dp"), ("dp_shard", "dp"), ("dp_shard_in_ep", "dp"), ("fsdp", "dp"),
        ("ddp", "dp"), ("data_parallel", "dp"), ("replicate", "dp"), ("batch", "dp"), ("TP", "tp"), ("tensor", "tp"),
        ("model", "tp"), ("pipeline", "pp"), ("context_parallel", "cp"), ("sp", "cp"), ("sequence_parallel", "cp"),
        ("ep", "ep"),
        ("dp_cp", ""), ("dp_shard_cp", ""), ("world", ""), ("x", ""),
    ],
)  # fmt: skip
def test_a_name_means_an_axis_or_nothing(name, axis):
    assert axis_of(name) == axis


def mesh(*sizes, names=()):
    n = 1
    for size in sizes:
        n *= size
    return Mesh(names=names, shape=sizes, ranks=tuple(range(n)))


def test_ranks_of_each_axis_are_those_that_differ_in_it_alone():
    known = layout([mesh(2, 2, 2, names=("pp", "dp", "tp"))], [], rank=5)

    assert known.groups == {"pp": (1, 5), "dp": (5, 7), "tp": (4, 5)}
    assert known.coords == Coords(pp=1, dp=0, tp=1)


def test_both_dimensions_of_hsdp_are_one_axis_beside_slices_of_it():
    meshes = [mesh(2, 2, names=("dp_replicate", "dp_shard")), Mesh(names=("dp_shard",), shape=(2,), ranks=(2, 3))]

    assert layout(meshes, [], rank=3).groups == {"dp": (0, 1, 2, 3)}


def test_dp_never_takes_in_the_ranks_of_cp():
    meshes = [mesh(2, 2, names=("batch", "cp")), Mesh(names=("fsdp",), shape=(4,), ranks=(0, 1, 2, 3))]

    assert layout(meshes, [], rank=1).groups == {"cp": (0, 1), "dp": (1, 3)}


def test_a_rank_outside_a_mesh_and_a_mesh_without_names_claim_nothing():
    outside: list[Any] = [Mesh(names=("tp",), shape=(2,), ranks=(0, 1)), mesh(4)]

    assert layout(outside, [], rank=3).groups == {}


def test_of_two_sources_the_earlier_is_believed():
    first = Layout(source="a", rank=1, groups={"dp": (0, 1)})
    second = Layout(source="b", rank=1, groups={"dp": (0, 1, 2, 3), "tp": (1, 5)})
    third = Layout(source="c", rank=1, groups={"tp": (1, 2)})

    both = merged([first, second, third], 1)

    assert (both.groups, both.source) == ({"tp": (1, 5), "dp": (0, 1)}, "a, b")
    assert both.coords == Coords(tp=0, dp=1)
