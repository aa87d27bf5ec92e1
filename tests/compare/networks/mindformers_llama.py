"""Llama and Qwen in the naming and with the fusions of MindFormers' LlamaForCausalLM, its training code."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .parts import RMSNorm, angles, attended, interleaved, next_token_loss, turned


class LlamaEmbedding(nn.Module):
    def __init__(self, n: int, size: int) -> None:
        super().__init__()
        self.embedding_weight = nn.Parameter(torch.empty(n, size))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return F.embedding(input_ids, self.embedding_weight)


class Linear(nn.Linear):
    pass


class LlamaSiLU(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.silu(x)


class FreqsMgr(nn.Module):
    """The tables of cosines and sines, (sequence, head)."""

    def __init__(self, head: int, theta: float) -> None:
        super().__init__()
        self.head, self.theta = head, theta

    def forward(self, seq_length: int) -> tuple[torch.Tensor, torch.Tensor]:
        angle = angles(seq_length, self.head, self.theta)
        return angle.cos(), angle.sin()


class LLamaAttention(nn.Module):
    def __init__(self, c: Any, concatenated: bool) -> None:
        super().__init__()
        self.n, self.g, self.d, self.concatenated = (
            c.num_attention_heads,
            c.num_key_value_heads,
            c.head_dim,
            concatenated,
        )
        self.w_qkv = Linear(c.hidden_size, (self.n + 2 * self.g) * self.d, bias=c.model_type == "qwen2")
        self.wo = Linear(self.n * self.d, c.hidden_size, bias=False)

    def forward(self, x: torch.Tensor, freqs_cis: tuple[torch.Tensor, torch.Tensor], mask: None = None) -> torch.Tensor:
        b, s = x.shape[:2]
        qkv = self.w_qkv(x)
        sizes = [self.n * self.d, self.g * self.d, self.g * self.d]
        if self.concatenated:
            q, k, v = qkv.split(sizes, dim=-1)
        else:
            q, k, v = qkv.view(b, s, self.g, -1).split([size // self.g for size in sizes], dim=-1)
        q, k, v = (t.reshape(b, s, -1, self.d).transpose(1, 2) for t in (q, k, v))
        out = attended(turned(q, *freqs_cis), turned(k, *freqs_cis), v)
        return self.wo(out.transpose(1, 2).reshape(b, s, -1))


class LlamaFeedForward(nn.Module):
    def __init__(self, c: Any, concatenated: bool) -> None:
        super().__init__()
        self.size, self.concatenated = c.intermediate_size, concatenated
        self.w_gate_hidden = Linear(c.hidden_size, 2 * c.intermediate_size, bias=False)
        self.activate = LlamaSiLU()
        self.w2 = Linear(c.intermediate_size, c.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = self.w_gate_hidden(x)
        gate, hidden = out.chunk(2, dim=-1) if self.concatenated else out.view(*x.shape[:2], self.size, 2).unbind(-1)
        return self.w2(hidden * self.activate(gate))


class LLamaDecodeLayer(nn.Module):
    def __init__(self, c: Any, concatenated: bool) -> None:
        super().__init__()
        self.ffn_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.attention_norm = RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.attention = LLamaAttention(c, concatenated)
        self.feed_forward = LlamaFeedForward(c, concatenated)

    def forward(self, x: torch.Tensor, freqs_cis: tuple[torch.Tensor, torch.Tensor], mask: None = None) -> torch.Tensor:
        h = x + self.attention(self.attention_norm(x), freqs_cis, mask)
        return h + self.feed_forward(self.ffn_norm(h))


class LlamaModel(nn.Module):
    def __init__(self, c: Any, concatenated: bool) -> None:
        super().__init__()
        self.freqs_mgr = FreqsMgr(c.head_dim, c.rope_parameters["rope_theta"])
        self.tok_embeddings = LlamaEmbedding(c.vocab_size, c.hidden_size)
        self.layers = nn.ModuleList(LLamaDecodeLayer(c, concatenated) for _ in range(c.num_hidden_layers))
        self.norm_out = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        freqs = self.freqs_mgr(tokens.shape[1])
        h = self.tok_embeddings(tokens)
        for layer in self.layers:
            h = layer(h, freqs)
        return self.norm_out(h)


class LlamaForCausalLM(nn.Module):
    """`forward` gives the loss, as MindFormers does in training."""

    def __init__(self, c: Any, *, concatenated: bool = False) -> None:
        super().__init__()
        self.model = LlamaModel(c, concatenated)
        self.lm_head = Linear(c.hidden_size, c.vocab_size, bias=False)

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return next_token_loss(self.lm_head(self.model(input_ids)), labels)

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        return self(ids, ids)


def converted(hf: dict[str, torch.Tensor], c: Any, *, concatenated: bool = False) -> dict[str, Any]:
    """The weights of a Hugging Face model for `LlamaForCausalLM`."""
    state = {
        "model.tok_embeddings.embedding_weight": hf["model.embed_tokens.weight"],
        "model.norm_out.weight": hf["model.norm.weight"],
        "lm_head.weight": hf["lm_head.weight"],
    }
    for i in range(c.num_hidden_layers):
        a = b = f"model.layers.{i}."
        state[f"{a}attention_norm.weight"] = hf[f"{b}input_layernorm.weight"]
        state[f"{a}ffn_norm.weight"] = hf[f"{b}post_attention_layernorm.weight"]
        for leaf in ("weight", "bias"):
            qkv = [hf.get(f"{b}self_attn.{x}_proj.{leaf}") for x in "qkv"]
            if qkv[0] is not None:
                fused = torch.cat(qkv) if concatenated else interleaved(*qkv, groups=c.num_key_value_heads)
                state[f"{a}attention.w_qkv.{leaf}"] = fused
        state[f"{a}attention.wo.weight"] = hf[f"{b}self_attn.o_proj.weight"]
        pair = [hf[f"{b}mlp.{x}_proj.weight"] for x in ("gate", "up")]
        fused = torch.cat(pair) if concatenated else torch.stack(pair, dim=1).flatten(0, 1)
        state[f"{a}feed_forward.w_gate_hidden.weight"] = fused
        state[f"{a}feed_forward.w2.weight"] = hf[f"{b}mlp.down_proj.weight"]
    return state
