"""Three networks of transformers, small, six blocks deep, with nothing degenerate: no weight is 1, no bias 0.

`build("qwen" | "gpt2" | "t5", dtype)` gives the same values in every process.
"""

from __future__ import annotations

import torch
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    T5Config,
    T5ForConditionalGeneration,
)

VOCABULARY, WIDTH, N_BLOCKS, N_HEADS = 256, 64, 6, 4


def build(network: str, dtype: torch.dtype) -> nn.Module:
    """A model ready to train; parameters in `dtype`."""
    torch.manual_seed(0)
    model = {"qwen": _qwen, "gpt2": _gpt2, "t5": _t5}[network]()
    _scatter(model)
    return model.to(dtype).train()


def _qwen() -> nn.Module:
    return Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_hidden_layers=N_BLOCKS,
            num_attention_heads=N_HEADS, num_key_value_heads=2, max_position_embeddings=WIDTH, initializer_range=0.1,
            use_cache=False,
        )
    )  # fmt: skip


def _gpt2() -> nn.Module:
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=N_BLOCKS, n_head=N_HEADS, n_positions=WIDTH, resid_pdrop=0.0,
            embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.1, use_cache=False, bos_token_id=0, eos_token_id=0,
        )
    )  # fmt: skip


def _t5() -> nn.Module:
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=VOCABULARY, d_model=WIDTH, d_kv=WIDTH // N_HEADS, d_ff=2 * WIDTH, num_layers=N_BLOCKS,
            num_decoder_layers=N_BLOCKS, num_heads=N_HEADS, dropout_rate=0.0, feed_forward_proj="gated-gelu",
            use_cache=False, decoder_start_token_id=0, pad_token_id=0,
        )
    )  # fmt: skip
    model.lm_head.weight = nn.Parameter(0.1 * torch.randn(VOCABULARY, WIDTH))  # as of version 1.1: not the embedding's
    return model


def _scatter(model: nn.Module) -> None:
    """Norms around 1, biases around 0, as after some training."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.copy_(0.2 * noise if name.endswith("bias") else 1.0 + 0.2 * noise)
