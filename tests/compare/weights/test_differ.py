"""Verdicts on checkpoints that are equal, rounded, almost equal, or not."""

from __future__ import annotations

import json
import subprocess
import sys

import jsonschema
import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from hypocenter.compare.pairing.manual_map import parse_map
from hypocenter.compare.weights.catalogue import read_checkpoint
from hypocenter.compare.weights.diff import WeightsComparison, diff_checkpoints
from hypocenter.json_answer import published, to_json
from hypocenter.report.weights_screen import render


def llama(n_layers=2, seed=0, tied=False):
    torch.manual_seed(seed)
    state = {"model.embed_tokens.weight": torch.randn(40, 16), "model.norm.weight": torch.ones(16)}
    for i in range(n_layers):
        stem = f"model.layers.{i}."
        state |= {
            f"{stem}self_attn.{x}_proj.weight": torch.randn(n, 16) for x, n in zip("qkvo", (16, 8, 8, 16), strict=True)
        }
        state |= {f"{stem}mlp.{x}_proj.weight": torch.randn(24, 16) for x in ("gate", "up")}
        state |= {f"{stem}mlp.down_proj.weight": torch.randn(16, 24), f"{stem}input_layernorm.weight": torch.ones(16)}
        state |= {f"{stem}post_attention_layernorm.weight": torch.ones(16)}
    return state if tied else {**state, "lm_head.weight": torch.randn(40, 16)}


@pytest.fixture
def diff(tmp_path):
    def run(a, b, manual=None, **options):
        for name, state in (("a", a), ("b", b)):
            save_file({key: value.contiguous() for key, value in state.items()}, tmp_path / f"{name}.safetensors")
        sides = (read_checkpoint(tmp_path / f"{name}.safetensors") for name in "ab")
        found = diff_checkpoints(*sides, manual, **options)
        jsonschema.validate(json.loads(to_json(found)), published(WeightsComparison))
        assert found.sentence.split(" ")[0].rstrip(":") in render(found)
        return found

    return run


def verdicts(found):
    return {row.candidate: row.difference.verdict for row in found.tensors}


def test_equal_bits(diff):
    found = diff(llama(), llama())

    assert found.status == "same"
    assert found.sentence == "same: 21 tensors, 21 equal to the bit"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_equal_after_a_cast_in_either_direction(diff, dtype):
    cast = {name: value.to(dtype) for name, value in llama().items()}

    for found in (diff(llama(), cast), diff(cast, llama())):
        assert found.status == "same"
        assert set(verdicts(found).values()) == {"equal-after-cast"}


def test_neighbours_are_within_an_ulp_and_two_steps_are_not(diff):
    state = llama()
    near, far = dict(state), dict(state)
    name = "model.layers.1.mlp.down_proj.weight"
    near[name] = torch.nextafter(state[name], torch.tensor(torch.inf))
    far[name] = torch.nextafter(near[name], torch.tensor(torch.inf))

    assert verdicts(diff(state, near))[name] == "within-ulp"
    assert diff(state, near).status == "same"
    assert verdicts(diff(state, far))[name] == "differs"
    assert verdicts(diff(state, far, ulp=2))[name] == "within-ulp"


def test_what_differs_is_measured(diff):
    state = llama()
    other = {name: value.clone() for name, value in state.items()}
    name = "model.layers.0.self_attn.o_proj.weight"
    other[name][3, 5] += 1.0
    other[name][9, 1] = torch.nan

    found = diff(state, other)

    row = next(row.difference for row in found.tensors if row.candidate == name)
    assert found.status == "diverged"
    assert (row.verdict, row.n_differ, row.n_nonfinite, row.first_index) == ("differs", 2, 1, (3, 5))
    assert row.max_abs == pytest.approx(1.0)
    a, b = state[name].double().numpy().copy(), other[name].double().numpy().copy()
    a[9, 1] = b[9, 1] = 0.0
    assert row.cosine == pytest.approx((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b))
    assert row.relative_l2 == pytest.approx(1.0 / np.linalg.norm(a))
    assert found.sentence.startswith(f"differ: 1 of 21 tensors, most {name}")


def test_nan_on_both_sides_and_signs_of_zero(diff):
    nan = {"a": torch.tensor([1.0, torch.nan, 0.0])}
    negative = {"a": torch.tensor([1.0, -torch.nan, -0.0])}

    assert verdicts(diff(nan, nan)) == {"a": "equal"}
    assert verdicts(diff(nan, negative)) == {"a": "within-ulp"}


def test_nothing_in_common_is_never_the_same(diff):
    found = diff({"x": torch.ones(3)}, {"weight": torch.zeros(4, 4)})

    assert found.status == "cannot-tell"
    assert found.tensors == ()
    assert (len(found.unmatched_baseline), len(found.unmatched_candidate)) == (1, 1)


def test_a_tensor_that_only_one_side_has_is_not_the_same(diff):
    state = llama()
    more = {**state, "model.extra.weight": torch.randn(3)}

    assert diff(state, more).status == "cannot-tell"
    assert diff({**state, "model.rotary_emb.inv_freq": torch.ones(4)}, state).status == "same"


def test_a_tied_output_layer_is_the_embedding(diff):
    tied = llama(tied=True)
    copied = {**tied, "lm_head.weight": tied["model.embed_tokens.weight"].clone()}

    assert diff(tied, copied).status == diff(copied, tied).status == "same"
    assert diff(tied, llama()).status == "diverged"


def fused(state, groups, order):
    result = {name: value for name, value in state.items() if not any(f".{x}_proj" in name for x in "qkv")}
    for i in range(2):
        parts = [state[f"model.layers.{i}.self_attn.{x}_proj.weight"] for x in "qkv"]
        count = groups if order == "interleaved" else 1
        cut = [part.reshape(count, -1, 16) for part in parts]
        result[f"model.layers.{i}.self_attn.qkv_proj.weight"] = torch.cat(cut, 1).reshape(-1, 16)
    return result


@pytest.mark.parametrize("order", ["concatenated", "interleaved"])
@pytest.mark.parametrize("groups", [2, 4])
def test_the_order_of_a_fused_tensor_is_found_from_its_values(diff, order, groups):
    state = llama()
    whole = fused(state, groups, order)

    assert diff(state, whole).status == "same"
    assert diff(whole, state).status == "same"


def test_the_map_wins(diff):
    a = {"p": torch.ones(4), "q": torch.zeros(4)}
    b = {"p": torch.zeros(4), "q": torch.ones(4)}
    manual = parse_map('[[pair]]\nbaseline="p"\ncandidate="q"\n[[pair]]\nbaseline="q"\ncandidate="p"\n')

    assert diff(a, b).status == "diverged"
    assert diff(a, b, manual).status == "same"


def test_renamed_modules_are_found_by_their_values(diff):
    state = llama()
    other = {name.replace("layers.1.mlp.", "layers.1.block."): value for name, value in state.items()}

    found = diff(state, other)

    assert found.status == "same"
    assert {row.by for row in found.tensors if "block" in row.candidate} <= {"structure", "value"}


@pytest.mark.night
def test_memory_does_not_grow_with_the_checkpoint(tmp_path):
    """Sparse files of 512 MiB each, so that reading one whole would be seen."""
    rows = 1 << 13
    entry = {"dtype": "F32", "shape": [rows, 8192], "data_offsets": [0, rows * 8192 * 4]}
    entries = {f"layers.{i}.weight": {**entry, "data_offsets": [i << 28, (i + 1) << 28]} for i in range(2)}
    text = json.dumps(entries).encode()
    for name in "ab":
        with (tmp_path / f"{name}.safetensors").open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + (2 << 28))
    words = ["weights", "diff", *(str(tmp_path / f"{name}.safetensors") for name in "ab")]
    program = (
        "import resource, sys; from hypocenter.cli import main\n"
        "import hypocenter.cli.commands.weights\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        f"assert main({words!r}) == 0\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, file=sys.stderr)"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert int(done.stderr.split()[-1]) < 160 << 10  # KiB
