"""Llama and Qwen in the naming and with the fusions of Megatron-Core's GPTModel: (sequence, batch, hidden) inside."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from .parts import RMSNorm, angles, attended, interleaved, next_token_loss, rotated


class ColumnParallelLinear(nn.Module):
    def __init__(self, n_in: int, n_out: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_out, n_in))
        self.bias = nn.Parameter(torch.zeros(n_out)) if bias else None

    def forward(self, input_: torch.Tensor) -> tuple[torch.Tensor, None]:
        return F.linear(input_, self.weight, self.bias), None


class RowParallelLinear(ColumnParallelLinear):
    pass


class TELayerNormColumnParallelLinear(nn.Module):
    """Norm and linear in one, as Transformer Engine has it."""

    def __init__(self, n_in: int, n_out: int, eps: float, bias: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.layer_norm_weight = nn.Parameter(torch.ones(n_in))
        self.weight = nn.Parameter(torch.empty(n_out, n_in))
        self.bias = nn.Parameter(torch.zeros(n_out)) if bias else None

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, None]:
        normed = self.layer_norm_weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))
        return F.linear(normed, self.weight, self.bias), None


class RotaryEmbedding(nn.Module):
    def __init__(self, head: int, theta: float) -> None:
        super().__init__()
        self.head, self.theta = head, theta

    def forward(self, n: int) -> torch.Tensor:
        return angles(n, self.head, self.theta)[:, None, None, :]


class DotProductAttention(nn.Module):
    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attention_mask: None
    ) -> torch.Tensor:
        out_bnsd = attended(*(x.permute(1, 2, 0, 3) for x in (query, key, value)))
        return out_bnsd.permute(2, 0, 1, 3).flatten(2)


class SelfAttention(nn.Module):
    def __init__(self, c: Any, fused_norm: bool) -> None:
        super().__init__()
        self.n, self.g, self.d = c.num_attention_heads, c.num_key_value_heads, c.head_dim
        rows, bias = (self.n + 2 * self.g) * self.d, c.model_type == "qwen2"
        if fused_norm:
            self.linear_qkv: nn.Module = TELayerNormColumnParallelLinear(c.hidden_size, rows, c.rms_norm_eps, bias)
        else:
            self.linear_qkv = ColumnParallelLinear(c.hidden_size, rows, bias)
        self.q_layernorm = self.k_layernorm = None
        if c.model_type == "qwen3":
            self.q_layernorm, self.k_layernorm = RMSNorm(self.d, c.rms_norm_eps), RMSNorm(self.d, c.rms_norm_eps)
        self.core_attention = DotProductAttention()
        self.linear_proj = RowParallelLinear(self.n * self.d, c.hidden_size)

    def forward(self, hidden_states: torch.Tensor, attention_mask: None, rotary_pos_emb: torch.Tensor) -> Any:
        mixed, _ = self.linear_qkv(hidden_states)
        by_group = mixed.view(*mixed.shape[:2], self.g, -1)
        q, k, v = by_group.split([self.n // self.g * self.d, self.d, self.d], dim=-1)
        q = q.reshape(*mixed.shape[:2], self.n, self.d)
        if self.q_layernorm is not None and self.k_layernorm is not None:
            q, k = self.q_layernorm(q), self.k_layernorm(k)
        q, k = rotated(q, rotary_pos_emb), rotated(k, rotary_pos_emb)
        return self.linear_proj(self.core_attention(q, k, v, attention_mask))


class MLP(nn.Module):
    def __init__(self, c: Any, fused_norm: bool) -> None:
        super().__init__()
        rows = 2 * c.intermediate_size
        if fused_norm:
            self.linear_fc1: nn.Module = TELayerNormColumnParallelLinear(c.hidden_size, rows, c.rms_norm_eps)
        else:
            self.linear_fc1 = ColumnParallelLinear(c.hidden_size, rows)
        self.linear_fc2 = RowParallelLinear(c.intermediate_size, c.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> Any:
        gate, up = self.linear_fc1(hidden_states)[0].chunk(2, dim=-1)
        return self.linear_fc2(F.silu(gate) * up)


class TransformerLayer(nn.Module):
    def __init__(self, c: Any, fused_norm: bool) -> None:
        super().__init__()
        norm = nn.Identity if fused_norm else lambda: RMSNorm(c.hidden_size, c.rms_norm_eps)
        self.input_layernorm = norm()
        self.self_attention = SelfAttention(c, fused_norm)
        self.pre_mlp_layernorm = norm()
        self.mlp = MLP(c, fused_norm)

    def forward(self, hidden_states: torch.Tensor, attention_mask: None, rotary_pos_emb: torch.Tensor) -> Any:
        attention, _ = self.self_attention(
            self.input_layernorm(hidden_states), attention_mask=attention_mask, rotary_pos_emb=rotary_pos_emb
        )
        hidden_states = hidden_states + attention
        return hidden_states + self.mlp(self.pre_mlp_layernorm(hidden_states))[0], None


class TransformerBlock(nn.Module):
    def __init__(self, c: Any, fused_norm: bool) -> None:
        super().__init__()
        self.layers = nn.ModuleList(TransformerLayer(c, fused_norm) for _ in range(c.num_hidden_layers))
        self.final_layernorm = RMSNorm(c.hidden_size, c.rms_norm_eps)

    def forward(self, hidden_states: torch.Tensor, attention_mask: None, rotary_pos_emb: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            hidden_states, _ = layer(hidden_states, attention_mask, rotary_pos_emb=rotary_pos_emb)
        return self.final_layernorm(hidden_states)


class LanguageModelEmbedding(nn.Module):
    def __init__(self, c: Any, rows: int) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(rows, c.hidden_size)

    def forward(self, input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        return self.word_embeddings(input_ids).transpose(0, 1).contiguous()


class GPTModel(nn.Module):
    """`forward` gives the loss when labels are given, else logits (batch, sequence, vocabulary)."""

    def __init__(self, c: Any, *, fused_norm: bool = False, padding: int = 0) -> None:
        super().__init__()
        self.n_words = c.vocab_size
        self.embedding = LanguageModelEmbedding(c, c.vocab_size + padding)
        self.rotary_pos_emb = RotaryEmbedding(c.head_dim, c.rope_parameters["rope_theta"])
        self.decoder = TransformerBlock(c, fused_norm)
        self.output_layer = ColumnParallelLinear(c.hidden_size, c.vocab_size + padding)

    def forward(
        self, input_ids: torch.Tensor, position_ids: torch.Tensor, attention_mask: None, labels: Any = None
    ) -> Any:
        hidden = self.embedding(input_ids=input_ids, position_ids=position_ids)
        hidden = self.decoder(hidden, None, rotary_pos_emb=self.rotary_pos_emb(input_ids.shape[1]))
        logits, _ = self.output_layer(hidden)
        if labels is None:
            return logits.transpose(0, 1).contiguous()
        return next_token_loss(logits.transpose(0, 1)[..., : self.n_words], labels)

    def loss(self, ids: torch.Tensor) -> torch.Tensor:
        return self(ids, torch.arange(ids.shape[1])[None], None, labels=ids)


def converted(hf: dict[str, torch.Tensor], c: Any, *, fused_norm: bool = False, padding: int = 0) -> dict[str, Any]:
    """The weights of a Hugging Face model for `GPTModel`."""

    def padded(table: torch.Tensor) -> torch.Tensor:
        return torch.cat([table, table.new_zeros(padding, table.shape[1])])

    state = {
        "embedding.word_embeddings.weight": padded(hf["model.embed_tokens.weight"]),
        "decoder.final_layernorm.weight": hf["model.norm.weight"],
        "output_layer.weight": padded(hf["lm_head.weight"]),
    }
    for i in range(c.num_hidden_layers):
        a, b = f"decoder.layers.{i}.", f"model.layers.{i}."
        norm_1, norm_2 = ("self_attention.linear_qkv.layer_norm_", "mlp.linear_fc1.layer_norm_") if fused_norm else (
            "input_layernorm.", "pre_mlp_layernorm.")  # fmt: skip
        state[f"{a}{norm_1}weight"] = hf[f"{b}input_layernorm.weight"]
        state[f"{a}{norm_2}weight"] = hf[f"{b}post_attention_layernorm.weight"]
        for leaf in ("weight", "bias"):
            qkv = [hf.get(f"{b}self_attn.{x}_proj.{leaf}") for x in "qkv"]
            if qkv[0] is not None:
                state[f"{a}self_attention.linear_qkv.{leaf}"] = interleaved(*qkv, groups=c.num_key_value_heads)
        for x in "qk":
            if f"{b}self_attn.{x}_norm.weight" in hf:
                state[f"{a}self_attention.{x}_layernorm.weight"] = hf[f"{b}self_attn.{x}_norm.weight"]
        state[f"{a}self_attention.linear_proj.weight"] = hf[f"{b}self_attn.o_proj.weight"]
        gate, up = hf[f"{b}mlp.gate_proj.weight"], hf[f"{b}mlp.up_proj.weight"]
        state[f"{a}mlp.linear_fc1.weight"] = torch.cat([gate, up])
        state[f"{a}mlp.linear_fc2.weight"] = hf[f"{b}mlp.down_proj.weight"]
    return state
