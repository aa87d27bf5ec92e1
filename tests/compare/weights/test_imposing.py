"""Which tensors of a checkpoint each parameter gets: other prefixes, fused parts; what is refused says why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from hypocenter.compare.weights import elements
from hypocenter.compare.weights.catalogue import read_checkpoint
from hypocenter.compare.weights.checkpoint import Checkpoint, CheckpointError, whole
from hypocenter.compare.weights.imposing import Given, Wanted, given_to


def checkpoint(folder: Path, **shapes: tuple[int, ...]) -> Checkpoint:
    draw = np.random.default_rng(0)
    path = folder / f"{len(list(folder.iterdir()))}.safetensors"
    save_file({name: draw.normal(size=shape).astype("float32") for name, shape in shapes.items()}, path)
    return read_checkpoint(path)


def wanted(**shapes: tuple[int, ...]) -> list[Wanted]:
    return [Wanted(names=(name,), shape=shape, dtype="float32") for name, shape in shapes.items()]


def values(given: Given, name: str) -> np.ndarray:
    view = given.views[name]
    return elements.values(view.read(whole(view.shape)), view.dtype)


LLAMA = {
    "model.embed_tokens.weight": (20, 8), "model.layers.0.self_attn.q_proj.weight": (8, 8),
    "model.layers.0.self_attn.k_proj.weight": (4, 8), "model.layers.0.self_attn.v_proj.weight": (4, 8),
    "model.layers.0.self_attn.o_proj.weight": (8, 8), "model.layers.0.mlp.gate_proj.weight": (12, 8),
    "model.layers.0.mlp.up_proj.weight": (12, 8), "model.layers.0.mlp.down_proj.weight": (8, 12),
    "model.layers.0.input_layernorm.weight": (8,), "model.layers.0.post_attention_layernorm.weight": (8,),
    "model.norm.weight": (8,), "lm_head.weight": (20, 8),
}  # fmt: skip
MEGATRON = {
    "embedding.word_embeddings.weight": (21, 8), "decoder.layers.0.self_attention.linear_qkv.weight": (16, 8),
    "decoder.layers.0.self_attention.linear_proj.weight": (8, 8), "decoder.layers.0.mlp.linear_fc1.weight": (24, 8),
    "decoder.layers.0.mlp.linear_fc2.weight": (8, 12), "decoder.layers.0.input_layernorm.weight": (8,),
    "decoder.layers.0.pre_mlp_layernorm.weight": (8,), "decoder.final_layernorm.weight": (8,),
    "output_layer.weight": (21, 8),
}  # fmt: skip
HEADS = {"num_attention_heads": 4, "num_query_groups": 2, "head_dim": 2}


@pytest.mark.parametrize("prefix", ["", "module.", "module.model."])
def test_a_prefix_of_all_names_is_taken_off_or_put_on(tmp_path: Path, prefix: str) -> None:
    shapes = {"a.weight": (3, 2), "b.weight": (3,)}
    wrapped = {f"{prefix}{name}": shape for name, shape in shapes.items()}

    off = given_to(wanted(**shapes), checkpoint(tmp_path, **wrapped))
    on = given_to(wanted(**wrapped), checkpoint(tmp_path, **shapes))

    assert (off.how, on.how) == ("by name", "by name")
    assert off.unused == on.unused == ()
    assert values(off, "a.weight").shape == values(on, f"{prefix}a.weight").shape == (3, 2)


def test_a_llama_is_fused_and_padded_for_megatron(tmp_path: Path) -> None:
    source = checkpoint(tmp_path, **LLAMA)

    given = given_to(wanted(**MEGATRON), source, settings=HEADS)

    assert given.how == "matched"
    assert any("1 zeros added along dimension 0" in note for note in given.notes)
    fc1 = values(given, "decoder.layers.0.mlp.linear_fc1.weight")
    gate = source.tensors["model.layers.0.mlp.gate_proj.weight"]
    assert (fc1[:12] == elements.values(gate.read(whole(gate.shape)), "float32")).all()


def test_another_vocabulary_is_no_padding(tmp_path: Path) -> None:
    shapes = {**MEGATRON, "embedding.word_embeddings.weight": (40, 8), "output_layer.weight": (40, 8)}

    with pytest.raises(CheckpointError, match="has 40 along dimension 0"):
        given_to(wanted(**shapes), checkpoint(tmp_path, **LLAMA), settings=HEADS)


def test_what_is_missing_and_left_over_is_listed(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError) as refused:
        given_to(wanted(one=(2,), two=(3, 4)), checkpoint(tmp_path, one=(2,), three=(5,)))

    assert refused.value.what == "the weights do not fit the model: 1 of 2 parameters get none"
    assert "no weights for two; left over: three" in refused.value.why
