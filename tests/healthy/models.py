"""Tiny healthy models from Transformers configs, made in code: nothing is downloaded.

`ZOO[name]()` gives a model in float32 with random weights; `batches(name, model)` three micro-batches with padding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

VOCAB, BATCH, LENGTH, STEPS = 60, 3, 10, 3
SMALL = {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
DECODER = SMALL | {"intermediate_size": 48, "num_key_value_heads": 2, "max_position_embeddings": 32, "pad_token_id": 0}
DECODER |= {"bos_token_id": 1, "eos_token_id": 2, "attention_dropout": 0.1}
ENCODER = SMALL | {"intermediate_size": 48, "max_position_embeddings": 40, "pad_token_id": 0}
T5_SIZES = {"vocab_size": VOCAB, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_decoder_layers": 2}
T5_SIZES |= {"num_heads": 4, "feed_forward_proj": "gated-gelu", "pad_token_id": 0, "decoder_start_token_id": 0}
BART_SIZES = {"vocab_size": VOCAB, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "pad_token_id": 0}
BART_SIZES |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48}
BART_SIZES |= {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2, "forced_eos_token_id": None}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True}
DEEPSEEK = {"moe_intermediate_size": 16, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1}
DEEPSEEK |= {"first_k_dense_replace": 1, "kv_lora_rank": 8, "q_lora_rank": 8, "qk_rope_head_dim": 8, "v_head_dim": 8}
DEEPSEEK |= {"qk_nope_head_dim": 8, "num_key_value_heads": 4, "n_shared_experts": 1}
BOTH, EAGER = ("sdpa", "eager"), ("eager",)


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How to make one model, and what it eats."""

    model: str  # class names in transformers
    config: str
    sizes: dict[str, Any] = field(default_factory=dict)
    attention: tuple[str, ...] = BOTH
    batch: str = "causal"

    def make(self, attention: str) -> nn.Module:
        """The model, seeded, in training mode (dropout on)."""
        torch.manual_seed(0)
        config = getattr(hf, self.config)(**self.sizes)
        return getattr(hf, self.model)._from_config(config, attn_implementation=attention).train()


ZOO: dict[str, Recipe] = {
    "bert": Recipe(model="BertForMaskedLM", config="BertConfig", sizes=ENCODER),
    "roberta": Recipe(model="RobertaForMaskedLM", config="RobertaConfig", sizes=ENCODER),
    "gpt2": Recipe(
        model="GPT2LMHeadModel",
        config="GPT2Config",
        sizes={"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32},
    ),
    "t5": Recipe(model="T5ForConditionalGeneration", config="T5Config", sizes=T5_SIZES, batch="seq2seq"),
    "mt5": Recipe(model="MT5ForConditionalGeneration", config="MT5Config", sizes=T5_SIZES, batch="seq2seq"),
    "bart": Recipe(model="BartForConditionalGeneration", config="BartConfig", sizes=BART_SIZES, batch="seq2seq"),
    "llama": Recipe(model="LlamaForCausalLM", config="LlamaConfig", sizes=DECODER),
    "mistral": Recipe(model="MistralForCausalLM", config="MistralConfig", sizes=DECODER | {"sliding_window": 4}),
    "qwen2": Recipe(model="Qwen2ForCausalLM", config="Qwen2Config", sizes=DECODER),
    "qwen3": Recipe(model="Qwen3ForCausalLM", config="Qwen3Config", sizes=DECODER | {"head_dim": 8}),
    "gemma2": Recipe(
        model="Gemma2ForCausalLM",
        config="Gemma2Config",
        sizes=DECODER | {"head_dim": 8, "sliding_window": 4},
        attention=EAGER,
    ),
    "mixtral": Recipe(model="MixtralForCausalLM", config="MixtralConfig", sizes=DECODER | EXPERTS),
    "qwen2-moe": Recipe(
        model="Qwen2MoeForCausalLM",
        config="Qwen2MoeConfig",
        sizes=DECODER
        | {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
        | {"shared_expert_intermediate_size": 16, "output_router_logits": True},
    ),
    "deepseek-v3": Recipe(model="DeepseekV3ForCausalLM", config="DeepseekV3Config", sizes=DECODER | DEEPSEEK),
    "opt": Recipe(
        model="OPTForCausalLM",
        config="OPTConfig",
        sizes=SMALL | {"ffn_dim": 48, "max_position_embeddings": 32, "word_embed_proj_dim": 32, "pad_token_id": 0},
    ),
    "bloom": Recipe(
        model="BloomForCausalLM",
        config="BloomConfig",
        sizes={"vocab_size": VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4, "hidden_dropout": 0.1},
        attention=EAGER,
    ),
    "falcon": Recipe(
        model="FalconForCausalLM",
        config="FalconConfig",
        sizes=SMALL | {"alibi": True, "hidden_dropout": 0.1, "pad_token_id": 0},
    ),
    "longformer": Recipe(
        model="LongformerForMaskedLM",
        config="LongformerConfig",
        sizes=ENCODER | {"attention_window": [4, 4]},
        attention=EAGER,
    ),
    "deberta-v2": Recipe(
        model="DebertaV2ForMaskedLM",
        config="DebertaV2Config",
        sizes=ENCODER | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_biased_input": False},
        attention=EAGER,
    ),
    "mamba": Recipe(
        model="MambaForCausalLM",
        config="MambaConfig",
        sizes={"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "pad_token_id": 0},
        attention=EAGER,
    ),
    "vit": Recipe(
        model="ViTForImageClassification",
        config="ViTConfig",
        sizes=ENCODER | {"image_size": 16, "patch_size": 8, "num_labels": 4, "hidden_dropout_prob": 0.1},
        batch="image",
    ),
    "whisper": Recipe(
        model="WhisperForConditionalGeneration",
        config="WhisperConfig",
        sizes=BART_SIZES
        | {"num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 16, "dropout": 0.1}
        | {"suppress_tokens": None, "begin_suppress_tokens": None},
        batch="speech",
    ),
}
CASES = [(name, attention) for name, recipe in ZOO.items() for attention in recipe.attention]


def batches(name: str) -> list[dict[str, Tensor]]:
    """One padded batch per step, the same at each call."""
    generator = torch.Generator().manual_seed(7)
    return [BATCHES[ZOO[name].batch](generator) for _ in range(STEPS)]


def _text(generator: torch.Generator) -> dict[str, Tensor]:
    ids = torch.randint(3, VOCAB, (BATCH, LENGTH), generator=generator)
    lengths = torch.tensor([[LENGTH], [LENGTH - 3], [LENGTH - 6]])
    mask = torch.arange(LENGTH) < lengths
    return {"input_ids": ids.masked_fill(~mask, 0), "attention_mask": mask.long()}


def _causal(generator: torch.Generator) -> dict[str, Tensor]:
    batch = _text(generator)
    return batch | {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


def _seq2seq(generator: torch.Generator) -> dict[str, Tensor]:
    return _text(generator) | {"labels": _causal(generator)["labels"][:, :7].contiguous()}


def _image(generator: torch.Generator) -> dict[str, Tensor]:
    pixels = torch.randn(BATCH, 3, 16, 16, generator=generator)
    return {"pixel_values": pixels, "labels": torch.randint(0, 4, (BATCH,), generator=generator)}


def _speech(generator: torch.Generator) -> dict[str, Tensor]:
    features = torch.randn(BATCH, 8, 20, generator=generator)
    return {"input_features": features, "labels": _causal(generator)["labels"][:, :7].contiguous()}


BATCHES: dict[str, Callable[[torch.Generator], dict[str, Tensor]]] = {
    "causal": _causal,
    "seq2seq": _seq2seq,
    "image": _image,
    "speech": _speech,
}
