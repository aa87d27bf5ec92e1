"""The training steps that are timed: a gated-gelu T5 and a GPT of about 24 M parameters, forward, backward, AdamW.

In float16 a `GradScaler` steps the optimizer. A CPU without float16 units does such a step 20 times slower than one in
bfloat16, so those batches are small: the parameters, which the check of a step costs by, are the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

N_ROWS, N_TOKENS = 8, 128  # one batch: rows, tokens in a row
N_SCALED_ROWS, N_SCALED_TOKENS = 1, 32  # of a float16 batch
INIT_SCALE = 256.0  # float16: fits from the start, so that no step is cheap because it is skipped
VOCABULARY = 10_000
N_BATCHES = 4  # different batches, used in turn


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A model, its optimizer and the function that trains one step and returns the loss."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    step: Callable[[], float]


def build(name: str) -> Workload:
    """Make a workload by name (see NAMES and SCALED): the same weights, batches and dropout every time."""
    family, precision = name.split("-")
    torch.manual_seed(0)
    model = _MODELS[family]().train()
    size = (N_SCALED_ROWS, N_SCALED_TOKENS) if precision == "fp16" else (N_ROWS, N_TOKENS)
    batches = [_batch(family, *size) for _ in range(N_BATCHES)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    step = _stepper(model, optimizer, batches, _AUTOCAST[precision])
    return Workload(model=model, optimizer=optimizer, step=step)


def _stepper(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[dict[str, Any]], autocast: torch.dtype | None
) -> Callable[[], float]:
    n_done = 0
    scaler = torch.amp.GradScaler("cpu", init_scale=INIT_SCALE, enabled=autocast is torch.float16)

    def step() -> float:
        nonlocal n_done
        batch = batches[n_done % len(batches)]
        n_done += 1
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            loss = model(**batch).loss
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    return step


def _batch(family: str, n_rows: int, n_tokens: int) -> dict[str, torch.Tensor]:
    tokens = torch.randint(1, VOCABULARY, (n_rows, n_tokens))
    return {"input_ids": tokens, "labels": tokens[:, : n_tokens // 2].clone() if family == "t5" else tokens.clone()}


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
_AUTOCAST = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
NAMES = ("t5-fp32", "t5-bf16", "gpt-fp32", "gpt-bf16")
SCALED = ("t5-fp16", "gpt-fp16")  # timed with the tools that concern the loss scale
