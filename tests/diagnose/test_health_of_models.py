"""The health of models of Transformers, made from configurations: numbers against what the models say themselves."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    BertConfig,
    BertForMaskedLM,
    GPT2Config,
    GPT2LMHeadModel,
    MambaConfig,
    MambaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    ViTConfig,
    ViTForImageClassification,
)

import hypocenter
from hypocenter.detect.health_rows import ENTROPY, HEALTH, LOAD, LOGITS, RANK, ROUTER, UNITS, UPDATE
from hypocenter.diagnose.health import answer
from hypocenter.diagnose.recorded_health import Recorded
from hypocenter.record.reader import open_run

SMALL = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "intermediate_size": 64}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MAKE = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, attn_implementation="eager",
        )
    ),
    "bert": lambda: BertForMaskedLM(
        BertConfig(**SMALL, **HEADS, **STILL, max_position_embeddings=16, attn_implementation="eager")
    ),
    "mixtral": lambda: MixtralForCausalLM(
        MixtralConfig(**SMALL, **HEADS, num_key_value_heads=2, num_local_experts=4, output_router_logits=True)
    ),
    "vit": lambda: ViTForImageClassification(
        ViTConfig(hidden_size=32, num_hidden_layers=2, **HEADS, **STILL, image_size=16, patch_size=8, num_labels=4)
    ),
    "mamba": lambda: MambaForCausalLM(MambaConfig(**SMALL, state_size=4)),
}  # fmt: skip
EXPECTED = {
    "gpt2": {UNITS, LOGITS, ENTROPY, RANK, UPDATE},
    "bert": {UNITS, LOGITS, ENTROPY, RANK, UPDATE},
    "mixtral": {UNITS, LOGITS, ENTROPY, LOAD, ROUTER, RANK, UPDATE},
    "vit": {UNITS, LOGITS, ENTROPY, RANK, UPDATE},
    "mamba": {UNITS, RANK, UPDATE},
}


def trained(name, out):
    """The model and its batch; nothing is learned, so that the numbers can be computed again."""
    torch.manual_seed(0)
    model = MAKE[name]().train()
    if name == "vit":
        batch = {"pixel_values": torch.randn(3, 3, 16, 16), "labels": torch.randint(0, 4, (3,))}
    else:
        tokens = torch.randint(0, 64, (3, 12))
        batch = {"input_ids": tokens, "labels": tokens}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    with hypocenter.watch(model, out=out, health="every=1"):
        for _ in range(2):
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return model, batch


@pytest.mark.slow
@pytest.mark.parametrize("name", MAKE)
def test_models_are_measured_and_in_range(tmp_path, name):
    model, batch = trained(name, tmp_path / "run")

    recording = open_run(tmp_path / "run")
    rows = [row for row in recording.readings() if row.op == HEALTH and row.step == 1]
    assert {row.port for row in rows} >= EXPECTED[name]
    assert {row.port for row in rows} & {LOAD, ROUTER} == EXPECTED[name] & {LOAD, ROUTER}
    assert [text for text in recording.run.warnings if "look" in text] == []
    assert [v for v in answer("", Recorded(recording)).values if v.status == "out-of-range"] == []
    for check in (units, entropies, loads):
        check(name, model, batch, rows)


class Activations(TorchDispatchMode):
    """Which share of the elements of each GELU and SiLU is on, in the order in which they run."""

    def __init__(self):
        super().__init__()
        self.shares = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        edge = {"gelu": -3.0, "silu": -6.0}.get(func.__name__.split(".")[0])
        if edge is not None and args[0].numel():
            self.shares.append(float((args[0] > edge).float().mean()))
        return func(*args, **(kwargs or {}))


def units(name, model, batch, rows):
    """From the operators; GPT-2 writes its GELU out: from the inputs of its modules."""
    found: list[float] = []
    if name == "gpt2":
        for block in model.transformer.h:
            block.mlp.act.register_forward_hook(lambda _, args, __: found.append(float((args[0] > -3).float().mean())))
    with torch.no_grad(), Activations() as seen:
        model(**batch)
    looked = [row.summary.sketch[5] for row in sorted(rows, key=lambda row: row.order) if row.port == UNITS]
    assert looked == pytest.approx(found or seen.shares, abs=1e-3)
    assert looked


def entropies(name, model, batch, rows):
    """From the attention that the model gives out."""
    if name not in ("gpt2", "bert"):
        return
    with torch.no_grad():
        given = model(**batch, output_attentions=True).attentions
    looked = [row for row in rows if row.port == ENTROPY]
    for row, p in zip(looked, given, strict=True):
        n = torch.arange(1, p.shape[-1] + 1) if name == "gpt2" else torch.full((p.shape[-1],), p.shape[-1])
        expected = (torch.special.entr(p).sum(-1)[..., n > 1] / n[n > 1].log()).mean((0, 2))
        assert row.summary.sketch == pytest.approx(expected.tolist(), rel=1e-4)


def loads(name, model, batch, rows):
    """From the router logits that the model gives out."""
    if name != "mixtral":
        return
    with torch.no_grad():
        given = model(**batch).router_logits
    looked = [row for row in rows if row.port == LOAD]
    for row, logits in zip(looked, given, strict=True):
        counts = torch.bincount(logits.topk(2, -1).indices.flatten(), minlength=4)
        assert row.summary.sketch == pytest.approx((counts / counts.sum()).tolist(), rel=1e-6)
