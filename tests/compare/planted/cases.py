"""Planted differences and pairs that differ by noise only: what is done, and what must be found.

What must be found follows from what is done, never from what was found; the latter is in docs/comparing-cases.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Base:
    """A good program."""

    network: str
    dtype: str
    n_microbatches: int = 1
    edit: str = ""  # what is done to it, and to all that is compared with it

    @property
    def id(self) -> str:
        """`qwen-bf16`, `gpt2-fp32-acc2`, `t5-bf16-even_rows`."""
        of_dtype = {"float32": "fp32", "bfloat16": "bf16"}[self.dtype]
        of_batch = f"-acc{self.n_microbatches}" if self.n_microbatches > 1 else ""
        return f"{self.network}-{of_dtype}{of_batch}" + (f"-{self.edit}" if self.edit else "")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A good program with one difference, and where it must be found.

    `phase` and `site` are of the first place: phases, and shell patterns of the baseline's names, divided by `|`; `fit`
    is the name of the cause.
    """

    id: str
    kind: str  # of the list in the benchmark's page
    base: Base
    edit: tuple[str, dict[str, Any]]
    phase: str
    site: str
    fit: str


Q32, Q16 = Base(network="qwen", dtype="float32"), Base(network="qwen", dtype="bfloat16")
G32, G16 = Base(network="gpt2", dtype="float32"), Base(network="gpt2", dtype="bfloat16")
T32, T16 = Base(network="t5", dtype="float32"), Base(network="t5", dtype="bfloat16")
Q32A = Base(network="qwen", dtype="float32", n_microbatches=2)
G16A = Base(network="gpt2", dtype="bfloat16", n_microbatches=2)


def _case(
    id_: str, kind: str, base: Base, phase: str, site: str, fit: str, edit: str, /, **arguments: Any
) -> Case:  # fmt: skip
    return Case(id=f"{id_}-{base.id}", kind=kind, base=base, edit=(edit, arguments), phase=phase, site=site, fit=fit)


CASES: tuple[Case, ...] = (
    # norm eps
    _case("eps", "norm eps", Q32, "forward", "model.layers.3.input_layernorm", "norm-eps",
          "norm_eps", module="model.layers.3.input_layernorm", eps=1e-3),
    _case("eps-all", "norm eps", Q16, "forward", "model.layers.0.input_layernorm", "norm-eps",
          "norm_eps", module="*norm", eps=1e-3),
    _case("eps", "norm eps", G32, "forward", "transformer.h.2.ln_1", "norm-eps",
          "norm_eps", module="transformer.h.2.ln_1", eps=1e-3),
    _case("eps", "norm eps", T32, "forward", "decoder.block.4.layer.1.layer_norm", "norm-eps",
          "norm_eps", module="decoder.block.4.layer.1.layer_norm", eps=1e-2),
    # one layer in bf16
    _case("layer-bf16", "one layer in bf16", Q32, "param", "model.layers.2.*", "precision-of-one-module",
          "precision", module="model.layers.2", dtype="bfloat16"),
    _case("layer-bf16", "one layer in bf16", G32, "param", "transformer.h.4.mlp.*", "precision-of-one-module",
          "precision", module="transformer.h.4.mlp", dtype="bfloat16"),
    _case("autocast", "one layer in bf16", T32, "forward", "encoder.block.3.layer.1.DenseReluDense.wi_*",
          "precision-of-one-module", "autocast", module="encoder.block.3.layer.1.DenseReluDense"),
    # GELU variant
    _case("gelu", "GELU variant", G32, "forward", "transformer.h.0.mlp.act", "activation-variant",
          "activation", module="transformer.h.*.mlp", name="gelu"),
    _case("gelu-one", "GELU variant", T32, "forward", "decoder.block.1.layer.2.DenseReluDense.act",
          "activation-variant", "activation", module="decoder.block.1.layer.2.DenseReluDense", name="gelu"),
    _case("quick-gelu", "GELU variant", G16, "forward", "transformer.h.3.mlp.act", "activation-variant",
          "activation", module="transformer.h.3.mlp", name="quick_gelu"),
    # rotary layout
    _case("rotary-code", "rotary layout", Q32, "forward", "model.layers.0.self_attn", "rotary-layout", "rotary_code"),
    _case("rotary-table", "rotary layout", Q16, "forward", "model.rotary_emb", "rotary-layout", "rotary_table"),
    _case("rotary-weights", "rotary layout", Q32, "param", "model.layers.4.self_attn.q_proj.*|"
          "model.layers.4.self_attn.k_proj.*", "rotary-layout", "rotary_weights", layer="model.layers.4.self_attn"),
    # head permutation
    _case("heads-in-code", "head permutation", Q32, "forward", "model.layers.3.self_attn", "head-permutation",
          "heads_in_code", module="model.layers.3.self_attn"),
    _case("heads-in-code", "head permutation", T16, "forward", "encoder.block.2.layer.0.SelfAttention",
          "head-permutation", "heads_in_code", module="encoder.block.2.layer.0.SelfAttention"),
    _case("heads-of-v", "head permutation", Q16, "param", "model.layers.1.self_attn.v_proj.weight",
          "head-permutation", "heads_of_weight", parameter="model.layers.1.self_attn.v_proj.weight", n=2),
    _case("qkv-by-head", "head permutation", G32, "param", "transformer.h.5.attn.c_attn.*", "head-permutation",
          "split_of_fused", parameter="transformer.h.5.attn.c_attn.*"),
    # transposed load
    _case("transposed", "transposed load", Q32, "param", "model.layers.2.self_attn.o_proj.weight",
          "transposed-weight", "transposed", parameter="model.layers.2.self_attn.o_proj.weight"),
    _case("transposed", "transposed load", T16, "param", "encoder.block.1.layer.0.SelfAttention.q.weight",
          "transposed-weight", "transposed", parameter="encoder.block.1.layer.0.SelfAttention.q.weight"),
    _case("transposed-all", "transposed load", G32, "param", "transformer.h.0.attn.c_proj.weight",
          "transposed-weight", "transposed", parameter="transformer.h.*.attn.c_proj.weight"),
    # missing QKV bias
    _case("no-bias", "missing QKV bias", Q32, "forward", "model.layers.2.self_attn.v_proj", "missing-bias",
          "without_bias", module="model.layers.2.self_attn.v_proj"),
    _case("no-bias-all", "missing QKV bias", Q16, "forward", "model.layers.0.self_attn.q_proj", "missing-bias",
          "without_bias", module="model.layers.*.self_attn.?_proj"),
    _case("zero-bias", "missing QKV bias", G32, "param", "transformer.h.1.attn.c_attn.bias", "missing-bias",
          "zero_bias", parameter="transformer.h.1.attn.c_attn.bias"),
    # norm + 1
    _case("plus-one", "norm + 1", Q32, "forward", "model.layers.0.input_layernorm", "norm-plus-one",
          "norm_plus_one", module="*norm"),
    _case("plus-one-one", "norm + 1", G16, "forward", "transformer.h.3.ln_2", "norm-plus-one",
          "norm_plus_one", module="transformer.h.3.ln_2"),
    _case("minus-one", "norm + 1", T32, "param", "encoder.block.0.layer.0.layer_norm.weight|*layer_norm.weight",
          "norm-plus-one", "norm_minus_one", parameter="*layer_norm.weight"),
    # wrong scale factor
    _case("embedding-scale", "wrong scale factor", Q32, "forward", "model.embed_tokens", "scale-factor",
          "scaled_output", module="model.embed_tokens", factor=8.0),
    _case("attention-scale", "wrong scale factor", G32, "forward", "transformer.h.2.attn", "scale-factor",
          "attention_scale", module="transformer.h.2.attn", factor=4.0),
    _case("decoder-scale", "wrong scale factor", T32, "forward", "", "scale-factor", "unscaled_decoder"),
    _case("branch-scale", "wrong scale factor", Q16, "forward", "model.layers.1.mlp", "scale-factor",
          "scaled_output", module="model.layers.1.mlp", factor=0.5),
    # other label shift
    _case("no-shift", "other label shift", G32, "loss|backward", "", "label-shift", "label_shift", shift=0),
    _case("shift-two", "other label shift", Q16, "loss|backward", "", "label-shift", "label_shift", shift=2),
    # embedding dtype
    _case("embedding-bf16", "embedding dtype", Q32, "param", "model.embed_tokens.weight", "precision-of-one-module",
          "precision", module="model.embed_tokens", dtype="bfloat16"),
    _case("embedding-bf16", "embedding dtype", T32, "param", "shared.weight", "precision-of-one-module",
          "precision", module="shared", dtype="bfloat16"),
    # weight decay on biases and norms
    _case("decay", "weight decay on biases and norms", G32, "optimizer", "transformer.*", "weight-decay",
          "decay", others=0.1),
    _case("decay", "weight decay on biases and norms", Q32, "optimizer", "model.*", "weight-decay",
          "decay", others=0.1),
    # Adam eps, betas
    _case("adam-eps", "Adam eps / betas", Q32, "optimizer", "*", "optimizer-options", "optimizer", eps=1e-4),
    _case("beta2", "Adam eps / betas", G32, "optimizer", "*", "optimizer-options", "optimizer", betas=[0.9, 0.999]),
    _case("beta1", "Adam eps / betas", T16, "optimizer", "*", "optimizer-options", "optimizer", betas=[0.8, 0.95]),
    # initialisation of one layer
    _case("std", "initialisation of one layer", Q32, "param", "model.layers.5.mlp.down_proj.weight",
          "initialisation", "initial", parameter="model.layers.5.mlp.down_proj.weight", times=0.28867513),
    _case("seed", "initialisation of one layer", T16, "param", "decoder.block.3.layer.1.EncDecAttention.k.weight",
          "initialisation", "initial", parameter="decoder.block.3.layer.1.EncDecAttention.k.weight", seed=9),
    # one more token in the mask
    _case("mask", "one more token in the mask", Q32, "data", "batch.attention_mask", "attention-mask", "wider_mask"),
    _case("mask", "one more token in the mask", T16, "data", "batch.attention_mask", "attention-mask", "wider_mask"),
    # accumulation normalisation
    _case("not-divided", "accumulation normalisation", Q32A, "loss|backward|grad", "*", "accumulation-normalisation",
          "accumulation", divisor=1.0),
    _case("not-divided", "accumulation normalisation", G16A, "loss|backward|grad", "*", "accumulation-normalisation",
          "accumulation", divisor=1.0),
    # data order
    _case("steps-swapped", "data order", G32, "data", "batch.input_ids", "data-order", "batch_order", steps=[1, 0, 2]),
    _case("later-swapped", "data order", Q16, "data", "batch.input_ids", "data-order", "batch_order", steps=[0, 2, 1]),
    _case("rows-flipped", "data order", T32, "data", "batch.*", "data-order", "row_order"),
    # others
    _case("lr", "others", Q32, "optimizer", "lr*", "learning-rate", "optimizer", lr=1.1e-3),
    _case("dropout", "others", G32, "forward", "transformer.drop", "dropout",
          "dropout", module="transformer.drop", p=0.1),
    _case("clip", "others", T32, "grad", "*", "clipping", "clip", norm=0.25),
    _case("optimizer", "others", G32, "optimizer", "*", "optimizer-options", "optimizer", amsgrad=True),
    _case("silu", "others", Q16, "forward", "model.layers.2.mlp.act_fn", "activation-variant",
          "activation", module="model.layers.2.mlp", name="gelu", attribute="act_fn"),
    _case("loss-scale", "others", T32, "loss", "", "scale-factor", "loss_times", factor=0.5),
)  # fmt: skip

_NOISE: dict[str, tuple[str, dict[str, Any]]] = {
    "order-1": ("shuffled_sums", {"seed": 1}),
    "order-2": ("shuffled_sums", {"seed": 2}),
    "sdpa-math": ("sdpa", {"backend": "MATH"}),
    "eager": ("eager", {}),
    "rows-in-two": ("split_rows", {}),
    "sums-in-two": ("split_sums", {}),
    "sums-of-norms": ("other_sums_of_norms", {}),
    "loss-by-token": ("loss_by_token", {}),
    "fused-updates": ("fused_updates", {}),
}


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Two good programs.

    `repeats`: names of other pairs of the same base; their second programs are the repeats (`--noise`) and the first of
    them is the baseline, so that no floor is from calibration.
    """

    name: str
    base: Base
    edit: tuple[str, dict[str, Any]] | None = None
    n_ranks: int = 1  # of the second program, by DistributedDataParallel
    repeats: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """`eager-qwen-fp32`."""
        return f"{self.name}-{self.base.id}"


_ALL = (Q32, Q16, G32, G16, T32, T16)
_REPEATS = ("order-1", "order-2", "rows-in-two", "sdpa-math")
NOISE: tuple[Noise, ...] = (
    *(Noise(name=name, base=base, edit=edit) for base in _ALL for name, edit in _NOISE.items()),
    *(Noise(name=f"threads-{n}", base=replace(base, edit="flat_norm"), edit=("threads", {"n": n}))
      for base in _ALL for n in (2, 3)),
    *(Noise(name="ddp", base=replace(base, edit="even_rows"), n_ranks=2) for base in _ALL),
    *(Noise(name=f"{name}-by-repeats", base=base, edit=_NOISE[name], repeats=_REPEATS)
      for base in _ALL for name in ("sums-in-two", "eager")),
)  # fmt: skip
