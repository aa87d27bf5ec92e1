"""Which modules a name, a glob or a shared module makes islands of."""

import pytest
import torch
from island_models import built
from torch import nn

import hypocenter
from hypocenter.errors import ConfigError, UnknownNameError

torch.set_num_threads(1)


@pytest.mark.parametrize("name", ["blocks.1", "_orig_mod.blocks.1", "module.blocks.1", "blocks.[1]", "*ocks.1"])
def test_names_may_be_the_users_or_the_wrappers_or_globs(name):
    torch._dynamo.reset()
    model = built()

    with hypocenter.island(torch.compile(model, backend="eager"), [name]) as handle:
        assert handle.targets == ("blocks.1",)
        assert "forward" in vars(model.blocks[1])
        assert "forward" not in vars(model.blocks[0])


def test_what_is_inside_another_island_is_not_one_of_its_own():
    model = built()

    handle = hypocenter.island(model, ["blocks.0.*", "blocks.0", "blocks.1.q*", "blocks.1.proj:matmul"])

    assert handle.targets == ("blocks.0", "blocks.1.qkv", "blocks.1.proj:matmul")


def test_an_op_counts_for_all_below_so_that_a_glob_takes_the_outermost():
    model = built()

    handle = hypocenter.island(model, ["blocks.*:sum", "blocks.0.qkv:linear", "blocks.0.qkv:sum"])

    assert set(handle.targets) == {"blocks.0:sum", "blocks.1:sum", "blocks.0.qkv:linear"}


def test_a_shared_module_is_one_island_under_all_its_names():
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)})

    handle = hypocenter.island(model, ["b.0", "a"])

    assert handle.targets == ("b.0",)
    assert vars(shared)["forward"].inner is None


def test_a_module_shared_with_the_outside_stays_narrow_there():
    shared = nn.Linear(4, 4)
    model = nn.ModuleDict({"a": shared, "b": nn.Sequential(shared)}).half()
    hypocenter.island(model, ["b"])

    out = shared(torch.ones(1, 4).half())

    assert out.dtype == torch.float16
    assert torch.equal(out, nn.functional.linear(torch.ones(1, 4).half(), shared.weight, shared.bias))


@pytest.mark.parametrize(
    ("name", "hint"),
    [("blocks.1.atn", "blocks.1"), ("block.1", "blocks.1"), ("first:matmull", "matmul"), ("last:add_", "add")],
)
def test_an_unknown_name_is_an_error_that_tells_the_nearest(name, hint):
    with pytest.raises(UnknownNameError) as error:
        hypocenter.island(built(), [name])

    assert f"did you mean {hint!r}?" in str(error.value) or hint in error.value.fix


def test_a_format_that_no_island_has_is_an_error():
    with pytest.raises(ConfigError, match="float16"):
        hypocenter.island(built(), ["first"], dtype=torch.float16)
