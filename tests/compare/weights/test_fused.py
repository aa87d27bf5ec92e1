"""compare/weights/fused.py: fused tensors are found by shapes and values, however they are called and lie."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from hypocenter.compare.weights.catalogue import read_checkpoint
from hypocenter.compare.weights.diff import diff_checkpoints

WIDTH, HEADS, HEAD = 32, 4, 8
LAYERS = 3
NAMES = ["qkv", "wqkv", "Wqkv", "c_attn", "query_key_value", "in_proj", "mixed"]


def split(groups=HEADS, seed=0):
    """Attention of three layers, with biases."""
    torch.manual_seed(seed)
    state = {"model.embed_tokens.weight": torch.randn(40, WIDTH)}
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}.self_attn"
        for name, rows in (("q", HEADS), ("k", groups), ("v", groups)):
            state[f"{stem}.{name}_proj.weight"] = torch.randn(rows * HEAD, WIDTH)
            state[f"{stem}.{name}_proj.bias"] = torch.randn(rows * HEAD)
        state[f"{stem}.o_proj.weight"] = torch.randn(WIDTH, WIDTH)
    return state


def fused(state, name, *, groups=1, transposed=False):
    """The same with one module for q, k and v; `groups` 1: one after another."""
    found = {key: value for key, value in state.items() if not any(f".{x}_proj." in key for x in "qkv")}
    for layer in range(LAYERS):
        stem = f"model.layers.{layer}.self_attn"
        for leaf in ("weight", "bias"):
            parts = [state[f"{stem}.{x}_proj.{leaf}"] for x in "qkv"]
            cut = [part.reshape(groups, -1, *part.shape[1:]) for part in parts]
            whole = torch.cat(cut, 1).reshape(-1, *parts[0].shape[1:])
            found[f"{stem}.{name}.{leaf}"] = whole.t() if transposed and leaf == "weight" else whole
    return found


@pytest.fixture
def diff(tmp_path):
    def run(a, b):
        for name, state in (("a", a), ("b", b)):
            save_file({key: value.contiguous() for key, value in state.items()}, tmp_path / f"{name}.safetensors")
        return diff_checkpoints(*(read_checkpoint(tmp_path / f"{name}.safetensors") for name in "ab"))

    return run


LAYOUTS = [  # (query groups, groups in which the parts lie, transposed)
    (HEADS, 1, False), (HEADS, 1, True), (HEADS, HEADS, False),
    (2, 1, False), (2, 2, False), (2, 1, True), (1, 1, False),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(("kv", "groups", "transposed"), LAYOUTS)
def test_split_and_fused_are_the_same_in_either_direction(diff, name, kv, groups, transposed):
    state = split(kv)
    whole = fused(state, name, groups=groups, transposed=transposed)

    assert diff(state, whole).status == "same"
    assert diff(whole, state).status == "same"


@pytest.mark.parametrize("kv", [HEADS, 2])
@pytest.mark.parametrize("one", [1, "kv"])
@pytest.mark.parametrize("transposed", [(False, False), (False, True), (True, False)])
def test_fused_on_both_sides_in_whatever_order(diff, kv, one, transposed):
    state, groups = split(kv), kv if one == "kv" else 1
    a = fused(state, "Wqkv", groups=groups, transposed=transposed[0])
    b = fused(state, "query_key_value", groups=1 if groups == kv else kv, transposed=transposed[1])

    assert diff(a, b).status == "same"


def test_other_parts_than_query_key_value(diff):
    state = split()
    pairs = {f"model.layers.{i}.self_attn.{x}_proj.weight": state[f"model.layers.{i}.self_attn.{x}_proj.weight"]
             for i in range(LAYERS) for x in "kv"}  # fmt: skip
    whole = {f"model.layers.{i}.self_attn.memory.weight":
             torch.cat([pairs[f"model.layers.{i}.self_attn.{x}_proj.weight"] for x in "kv"])
             for i in range(LAYERS)}  # fmt: skip

    assert diff(pairs, whole).status == "same"
    assert diff(whole, pairs).status == "same"


def test_a_lower_format_is_a_cast(diff):
    state = split(2)
    lower = {name: value.bfloat16() for name, value in fused(state, "wqkv", groups=2).items()}

    found = diff(state, lower)

    assert found.status == "same"
    assert {row.difference.verdict for row in found.tensors} == {"equal-after-cast"}


def test_one_element_that_differs_is_found_in_its_part(diff):
    state = split(2)
    whole = fused(state, "qkv", groups=2)
    whole["model.layers.1.self_attn.qkv.weight"][5, 3] += 1.0

    found = diff(state, whole)

    assert found.status == "diverged"
    (row,) = [row for row in found.tensors if row.difference.verdict == "differs"]
    assert row.candidate == "model.layers.1.self_attn.qkv.weight"
    assert row.difference.first_index == (5, 3)
    assert row.difference.n_differ == 1


def test_other_values_are_never_paired(diff):
    found = diff(split(2), fused(split(2, seed=1), "qkv", groups=2))

    assert not any(".qkv." in row.candidate for row in found.tensors)
    assert found.status != "same"


def test_the_order_is_told(diff):
    state = split(2)

    found = diff(state, fused(state, "query_key_value", groups=2))

    (row,) = [row for row in found.tensors if row.candidate.endswith("layers.0.self_attn.query_key_value.weight")]
    assert row.why == "found by values: q_proj, k_proj, v_proj lie in 2 groups"


@pytest.mark.parametrize("groups", [1, 4])
def test_a_sample_of_the_first_rows_does_not_hide_the_order(diff, groups):
    """The first rows of a whole are those of its first part in whatever order."""
    width, rows = 4096, 256  # 16 rows are a sample
    torch.manual_seed(0)
    parts = {x: torch.randn(rows, width) for x in "qkv"}
    state = {f"model.layers.0.self_attn.{x}_proj.weight": part for x, part in parts.items()}
    whole = torch.cat([part.reshape(groups, -1, width) for part in parts.values()], 1).reshape(-1, width)

    for name in ("qkv_proj", "qkv"):
        found = diff(state, {f"model.layers.0.self_attn.{name}.weight": whole})
        assert found.status == "same", name
