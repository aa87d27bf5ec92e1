"""Llama in the naming of torchtitan: nothing fused, layers in a dictionary."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .parts import RMSNorm, angles, attended, next_token_loss, rotated

_NAMES = {
    "attention_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attention.wq": "self_attn.q_proj",
    "attention.wk": "self_attn.k_proj", "attention.wv": "self_attn.v_proj", "attention.wo": "self_attn.o_proj",
    "feed_forward.w1": "mlp.gate_proj", "feed_forward.w2": "mlp.down_proj", "feed_forward.w3": "mlp.up_proj",
}  # fmt: skip


class Attention(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.d, bias = c.head_dim, c.model_type == "qwen2"
        self.wq = nn.Linear(c.hidden_size, c.num_attention_heads * self.d, bias=bias)
        self.wk = nn.Linear(c.hidden_size, c.num_key_value_heads * self.d, bias=bias)
        self.wv = nn.Linear(c.hidden_size, c.num_key_value_heads * self.d, bias=bias)
        self.wo = nn.Linear(c.num_attention_heads * self.d, c.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
        b, s = x.shape[:2]
        q, k, v = (w(x).view(b, s, -1, self.d).transpose(1, 2) for w in (self.wq, self.wk, self.wv))
        out = attended(rotated(q, freqs_cis), rotated(k, freqs_cis), v)
        return self.wo(out.transpose(1, 2).reshape(b, s, -1))


class FeedForward(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.w1 = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)
        self.w2 = nn.Linear(c.intermediate_size, c.hidden_size, bias=False)
        self.w3 = nn.Linear(c.hidden_size, c.intermediate_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class TransformerBlock(nn.Module):
    def __init__(self, c: Any) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(c), FeedForward(c)
        self.attention_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.ffn_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, x: torch.Tensor, freqs_cis: torch.Tensor) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x), freqs_cis)
        return h + self.feed_forward(self.ffn_norm(h))


class Transformer(nn.Module):
    """`forward` gives logits."""

    def __init__(self, c: Any) -> None:
        super().__init__()
        self.head, self.theta = c.head_dim, c.rope_parameters["rope_theta"]
        self.tok_embeddings = nn.Embedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleDict({str(i): TransformerBlock(c) for i in range(c.num_hidden_layers)})
        self.norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.output = nn.Linear(c.hidden_size, c.vocab_size, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        h, freqs = self.tok_embeddings(tokens), angles(tokens.shape[1], self.head, self.theta)
        for layer in self.layers.values():
            h = layer(h, freqs)
        return self.output(self.norm(h))

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        return next_token_loss(self(ids), ids)


def converted(hf: dict[str, torch.Tensor], c: Any) -> dict[str, Any]:
    """The weights of a Hugging Face model for `Transformer`."""
    state = {
        "tok_embeddings.weight": hf["model.embed_tokens.weight"],
        "norm.weight": hf["model.norm.weight"],
        "output.weight": hf["lm_head.weight"],
    }
    for name, weight in hf.items():
        for ours, theirs in _NAMES.items():
            if f".{theirs}." in name:
                state[name.removeprefix("model.").replace(theirs, ours)] = weight
    return state
