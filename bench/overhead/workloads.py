"""The training steps that are timed: a gated-gelu T5 and a GPT of about 24 M parameters, forward, backward, AdamW."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

N_ROWS, N_TOKENS = 8, 128  # one batch: rows, tokens in a row
VOCABULARY = 10_000
N_BATCHES = 4  # different batches, used in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, its optimizer and the function that trains one step and returns the loss."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[], float]


def build(name: str) -> Workload:
    """Make a workload by name (see NAMES): the same weights, batches and dropout every time."""
    family, precision = name.split("-")
    torch.manual_seed(0)
    model = _MODELS[family]().train()
    batches = [_batch(family) for _ in range(N_BATCHES)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Workload(model=model, optimizer=optimizer, step=_stepper(model, optimizer, batches, precision == "bf16"))


def _stepper(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[dict[str, Any]], is_bf16: bool
) -> Callable[[], float]:
    n_done = 0

    def step() -> float:
        nonlocal n_done
        batch = batches[n_done % len(batches)]
        n_done += 1
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=is_bf16):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _batch(family: str) -> dict[str, torch.Tensor]:
    tokens = torch.randint(1, VOCABULARY, (N_ROWS, N_TOKENS))
    return {"input_ids": tokens, "labels": tokens[:, : N_TOKENS // 2].clone() if family == "t5" else tokens.clone()}


def _t5() -> nn.Module:
    from transformers import T5Config, T5ForConditionalGeneration

    return T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY, d_model=384, d_kv=64, num_heads=6, d_ff=1024, num_layers=5, num_decoder_layers=5,
            feed_forward_proj="gated-gelu", tie_word_embeddings=False, decoder_start_token_id=0, use_cache=False,
        )
    )  # fmt: skip


def _gpt() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=384, n_layer=11, n_head=6, n_positions=N_TOKENS, use_cache=False,
            bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


_MODELS = {"t5": _t5, "gpt": _gpt}
NAMES = ("t5-fp32", "t5-bf16", "gpt-fp32", "gpt-bf16")
