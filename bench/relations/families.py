"""Tiny healthy models from Transformers configs, with batches that they eat: nothing is downloaded."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.healthy import models
from tests.healthy.models import BART_SIZES, DECODER, EAGER, ENCODER, SMALL, T5_SIZES, VOCAB, ZOO, Recipe

BATCH, LENGTH, CLASSES = 4, 12, 4
GPT = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 32}
IMAGE = ENCODER | {"image_size": 16, "patch_size": 8, "num_labels": CLASSES}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": CLASSES}
AUDIO = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
    "conv_dim": (16, 16),
    "conv_stride": (4, 2),
    "conv_kernel": (8, 3),
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "feat_extract_norm": "layer",
    "mask_time_length": 2,
    "pad_token_id": 0,
    "do_stable_layer_norm": True,
    "ctc_zero_infinity": True,
}
TWO_TOWERS_TEXT = ENCODER | {"projection_dim": 16, "eos_token_id": 2, "bos_token_id": 1}
TWO_TOWERS_IMAGE = {k: v for k, v in ENCODER.items() if k != "vocab_size"} | {"image_size": 16, "patch_size": 8}


DECODERS = {
    "phi": "Phi",
    "phi3": "Phi3",
    "stablelm": "StableLm",
    "starcoder2": "Starcoder2",
    "olmo": "Olmo",
    "olmo2": "Olmo2",
    "cohere": "Cohere",
    "granite": "Granite",
    "persimmon": "Persimmon",
    "smollm3": "SmolLM3",
}
WIDE_HEADS = {"gemma": "Gemma", "glm": "Glm", "nemotron": "Nemotron", "helium": "Helium"}
TRANSLATORS = {"pegasus": "Pegasus", "mbart": "MBart", "m2m100": "M2M100", "blenderbot": "Blenderbot"}
LISTENERS = {"wav2vec2": "Wav2Vec2", "hubert": "Hubert", "wavlm": "WavLM"}


def _r(model: str, config: str, sizes: dict[str, Any], batch: str = "causal", eager: bool = True) -> Recipe:
    return Recipe(model=model, config=config, sizes=sizes, batch=batch, attention=EAGER if eager else ("sdpa",))


MORE: dict[str, Recipe] = {
    "gpt-neo": _r(
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "num_layers": 2,
            "attention_types": [[["global", "local"], 1]],
            "num_heads": 4,
            "window_size": 4,
            "max_position_embeddings": 32,
        },
    ),
    "gpt-neox": _r(
        "GPTNeoXForCausalLM", "GPTNeoXConfig", SMALL | {"intermediate_size": 48, "max_position_embeddings": 32}
    ),
    "gptj": _r("GPTJForCausalLM", "GPTJConfig", GPT | {"rotary_dim": 4}),
    "codegen": _r("CodeGenForCausalLM", "CodeGenConfig", GPT | {"rotary_dim": 4}),
    "gpt-bigcode": _r("GPTBigCodeForCausalLM", "GPTBigCodeConfig", GPT),
    "olmoe": _r("OlmoeForCausalLM", "OlmoeConfig", DECODER | {"num_experts": 4, "num_experts_per_tok": 2}),
    "gemma3": _r("Gemma3ForCausalLM", "Gemma3TextConfig", DECODER | {"head_dim": 8, "sliding_window": 4}),
    "biogpt": _r(
        "BioGptForCausalLM",
        "BioGptConfig",
        SMALL | {"intermediate_size": 48, "max_position_embeddings": 32, "pad_token_id": 0},
    ),
    "xglm": _r(
        "XGLMForCausalLM",
        "XGLMConfig",
        {
            "vocab_size": VOCAB,
            "d_model": 32,
            "num_layers": 2,
            "attention_heads": 4,
            "ffn_dim": 48,
            "max_position_embeddings": 32,
            "pad_token_id": 0,
        },
    ),
    "mpt": _r(
        "MptForCausalLM",
        "MptConfig",
        {"vocab_size": VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 32},
    ),
    "ctrl": _r("CTRLLMHeadModel", "CTRLConfig", GPT | {"dff": 48}),
    "openai-gpt": _r("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", GPT),
    "mamba2": _r(
        "Mamba2ForCausalLM",
        "Mamba2Config",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "state_size": 4,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 1,
            "chunk_size": 4,
            "pad_token_id": 0,
        },
    ),
    "rwkv": _r(
        "RwkvForCausalLM",
        "RwkvConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "attention_hidden_size": 32,
            "context_length": 32,
        },
    ),
    "recurrent-gemma": _r(
        "RecurrentGemmaForCausalLM",
        "RecurrentGemmaConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "intermediate_size": 48,
            "attention_window_size": 8,
            "lru_width": 32,
            "pad_token_id": 0,
        },
    ),
    "jetmoe": _r(
        "JetMoeForCausalLM",
        "JetMoeConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_key_value_heads": 2,
            "kv_channels": 8,
            "intermediate_size": 48,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "pad_token_id": 0,
        },
    ),
    "bloom-like": _r("FalconForCausalLM", "FalconConfig", SMALL | {"alibi": False, "pad_token_id": 0}),
    "qwen3-moe": _r(
        "Qwen3MoeForCausalLM",
        "Qwen3MoeConfig",
        DECODER | {"head_dim": 8, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
    ),
    "gpt-oss": _r(
        "GptOssForCausalLM",
        "GptOssConfig",
        DECODER | {"head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 4},
    ),
    "albert": _r("AlbertForMaskedLM", "AlbertConfig", ENCODER | {"embedding_size": 16}, "masked"),
    "distilbert": _r(
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"vocab_size": VOCAB, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 40},
        "masked",
    ),
    "electra": _r("ElectraForMaskedLM", "ElectraConfig", ENCODER | {"embedding_size": 16}, "masked"),
    "mobilebert": _r(
        "MobileBertForMaskedLM",
        "MobileBertConfig",
        ENCODER | {"embedding_size": 32, "intra_bottleneck_size": 32},
        "masked",
    ),
    "squeezebert": _r("SqueezeBertForMaskedLM", "SqueezeBertConfig", ENCODER | {"embedding_size": 32}, "masked"),
    "fnet": _r("FNetForMaskedLM", "FNetConfig", ENCODER, "unpadded"),
    "nystromformer": _r(
        "NystromformerForMaskedLM",
        "NystromformerConfig",
        ENCODER | {"num_landmarks": 12, "segment_means_seq_len": 12},
        "masked",
    ),
    "funnel": _r(
        "FunnelForMaskedLM",
        "FunnelConfig",
        {"vocab_size": VOCAB, "d_model": 32, "block_sizes": [1, 1], "n_head": 4, "d_head": 8, "d_inner": 48},
        "masked",
    ),
    "convbert": _r(
        "ConvBertForMaskedLM", "ConvBertConfig", ENCODER | {"embedding_size": 32, "conv_kernel_size": 3}, "masked"
    ),
    "mpnet": _r("MPNetForMaskedLM", "MPNetConfig", ENCODER | {"pad_token_id": 1}, "masked"),
    "deberta": _r(
        "DebertaForMaskedLM",
        "DebertaConfig",
        ENCODER | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
        "masked",
    ),
    "roformer": _r("RoFormerForMaskedLM", "RoFormerConfig", ENCODER | {"embedding_size": 32}, "masked"),
    "bigbird": _r("BigBirdForMaskedLM", "BigBirdConfig", ENCODER | {"attention_type": "original_full"}, "masked"),
    "xlnet": _r(
        "XLNetLMHeadModel",
        "XLNetConfig",
        {"vocab_size": VOCAB, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 48},
        "masked",
    ),
    "reformer": _r(
        "ReformerModelWithLMHead",
        "ReformerConfig",
        {
            "vocab_size": VOCAB,
            "hidden_size": 32,
            "attention_head_size": 8,
            "num_attention_heads": 4,
            "feed_forward_size": 48,
            "attn_layers": ["local"],
            "is_decoder": True,
            "axial_pos_shape": [4, 3],
            "axial_pos_embds_dim": [16, 16],
            "local_attn_chunk_length": 4,
            "max_position_embeddings": 12,
        },
        "unpadded",
    ),
    "bert-classifier": _r("BertForSequenceClassification", "BertConfig", ENCODER | {"num_labels": CLASSES}, "classes"),
    "roberta-classifier": _r(
        "RobertaForSequenceClassification", "RobertaConfig", ENCODER | {"num_labels": CLASSES}, "classes"
    ),
    "bert-tokens": _r("BertForTokenClassification", "BertConfig", ENCODER | {"num_labels": CLASSES}, "tokens"),
    "llama-classifier": _r(
        "LlamaForSequenceClassification", "LlamaConfig", DECODER | {"num_labels": CLASSES}, "classes"
    ),
    "switch": _r(
        "SwitchTransformersForConditionalGeneration",
        "SwitchTransformersConfig",
        T5_SIZES
        | {"num_experts": 4, "expert_capacity": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
        "seq2seq",
    ),
    "longt5": _r(
        "LongT5ForConditionalGeneration",
        "LongT5Config",
        T5_SIZES | {"local_radius": 3, "encoder_attention_type": "local"},
        "seq2seq",
    ),
    "umt5": _r("UMT5ForConditionalGeneration", "UMT5Config", T5_SIZES, "seq2seq"),
    "led": _r("LEDForConditionalGeneration", "LEDConfig", BART_SIZES | {"attention_window": 4}, "seq2seq"),
    "marian": _r("MarianMTModel", "MarianConfig", BART_SIZES | {"decoder_vocab_size": VOCAB}, "seq2seq"),
    "deit": _r("DeiTForImageClassification", "DeiTConfig", IMAGE, "image"),
    "beit": _r(
        "BeitForImageClassification",
        "BeitConfig",
        {k: v for k, v in IMAGE.items() if k != "pad_token_id"} | {"drop_path_rate": 0.2},
        "image",
    ),
    "swin": _r(
        "SwinForImageClassification",
        "SwinConfig",
        {
            "image_size": 16,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 2],
            "window_size": 2,
            "num_labels": CLASSES,
            "drop_path_rate": 0.2,
        },
        "image",
    ),
    "swinv2": _r(
        "Swinv2ForImageClassification",
        "Swinv2Config",
        {
            "image_size": 16,
            "patch_size": 2,
            "embed_dim": 16,
            "depths": [2, 2],
            "num_heads": [2, 2],
            "window_size": 2,
            "num_labels": CLASSES,
        },
        "image",
    ),
    "convnext": _r(
        "ConvNextForImageClassification",
        "ConvNextConfig",
        {"num_stages": 2, "hidden_sizes": [8, 16], "depths": [1, 1], "num_labels": CLASSES, "drop_path_rate": 0.2},
        "image",
    ),
    "resnet": _r(
        "ResNetForImageClassification", "ResNetConfig", STAGES | {"embedding_size": 8, "layer_type": "basic"}, "image"
    ),
    "regnet": _r(
        "RegNetForImageClassification", "RegNetConfig", STAGES | {"embedding_size": 8, "groups_width": 8}, "image"
    ),
    "mobilenet": _r(
        "MobileNetV2ForImageClassification",
        "MobileNetV2Config",
        {"depth_multiplier": 0.2, "num_labels": CLASSES},
        "image32",
    ),
    "segformer": _r(
        "SegformerForImageClassification",
        "SegformerConfig",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "sr_ratios": [2, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "num_attention_heads": [1, 2],
            "mlp_ratios": [2, 2],
            "num_labels": CLASSES,
        },
        "image",
    ),
    "poolformer": _r(
        "PoolFormerForImageClassification",
        "PoolFormerConfig",
        {
            "num_encoder_blocks": 2,
            "depths": [1, 1],
            "hidden_sizes": [8, 16],
            "patch_sizes": [3, 3],
            "strides": [2, 2],
            "padding": [1, 1],
            "num_labels": CLASSES,
        },
        "image",
    ),
    "dinov2": _r(
        "Dinov2ForImageClassification",
        "Dinov2Config",
        {
            k: v
            for k, v in IMAGE.items()
            if k not in ("vocab_size", "pad_token_id", "max_position_embeddings", "intermediate_size")
        },
        "image",
    ),
    "yolos": _r(
        "YolosForObjectDetection",
        "YolosConfig",
        {k: v for k, v in IMAGE.items() if k != "image_size"} | {"image_size": [16, 16], "num_detection_tokens": 5},
        "detect",
    ),
    "vit-mae": _r(
        "ViTMAEForPreTraining",
        "ViTMAEConfig",
        {k: v for k, v in IMAGE.items() if k not in ("vocab_size", "pad_token_id", "max_position_embeddings")}
        | {
            "decoder_hidden_size": 16,
            "decoder_num_hidden_layers": 1,
            "decoder_num_attention_heads": 2,
            "decoder_intermediate_size": 24,
        },
        "pixels",
    ),
    "wav2vec2-groupnorm": _r(
        "Wav2Vec2ForCTC", "Wav2Vec2Config", AUDIO | {"feat_extract_norm": "group", "do_stable_layer_norm": False}, "ctc"
    ),
    "speech2text": _r(
        "Speech2TextForConditionalGeneration",
        "Speech2TextConfig",
        BART_SIZES
        | {"input_feat_per_channel": 8, "conv_channels": 8, "max_source_positions": 24, "max_target_positions": 24},
        "features",
    ),
    "ast": _r(
        "ASTForAudioClassification",
        "ASTConfig",
        {k: v for k, v in SMALL.items() if k != "vocab_size"}
        | {
            "intermediate_size": 48,
            "patch_size": 4,
            "frequency_stride": 4,
            "time_stride": 4,
            "max_length": 16,
            "num_mel_bins": 8,
            "num_labels": CLASSES,
        },
        "spectrogram",
    ),
    "clip": _r(
        "CLIPModel",
        "CLIPConfig",
        {"text_config": TWO_TOWERS_TEXT, "vision_config": TWO_TOWERS_IMAGE, "projection_dim": 16},
        "contrastive",
    ),
    "siglip": _r(
        "SiglipModel",
        "SiglipConfig",
        {"text_config": TWO_TOWERS_TEXT | {"projection_size": 32}, "vision_config": TWO_TOWERS_IMAGE},
        "unmasked-pairs",
    ),
    "patchtst": _r(
        "PatchTSTForPrediction",
        "PatchTSTConfig",
        {
            "num_input_channels": 3,
            "context_length": 16,
            "patch_length": 4,
            "patch_stride": 4,
            "prediction_length": 4,
            "d_model": 16,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "ffn_dim": 24,
        },
        "series",
    ),
    "decision": _r(
        "GPT2ForSequenceClassification", "GPT2Config", GPT | {"pad_token_id": 0, "num_labels": CLASSES}, "classes"
    ),
}
ALIKE: dict[str, Recipe] = {
    **{name: _r(f"{kind}ForCausalLM", f"{kind}Config", DECODER) for name, kind in DECODERS.items()},
    **{name: _r(f"{kind}ForCausalLM", f"{kind}Config", DECODER | {"head_dim": 8}) for name, kind in WIDE_HEADS.items()},
    **{
        name: _r(f"{kind}ForConditionalGeneration", f"{kind}Config", BART_SIZES, "seq2seq")
        for name, kind in TRANSLATORS.items()
    },
    **{name: _r(f"{kind}ForCTC", f"{kind}Config", AUDIO, "ctc") for name, kind in LISTENERS.items()},
}
FAMILIES: dict[str, Recipe] = ZOO | MORE | ALIKE


def batch_of(recipe: Recipe, seed: int = 0) -> dict[str, Any]:
    """One padded batch of BATCH samples."""
    generator = torch.Generator().manual_seed(seed)
    made: dict[str, Any] = BATCHES[recipe.batch](generator)
    return made


def _text(g: torch.Generator, side: str = "right") -> dict[str, Tensor]:
    ids = torch.randint(3, VOCAB, (BATCH, LENGTH), generator=g)
    lengths = torch.tensor([[LENGTH], [LENGTH - 2], [LENGTH - 4], [LENGTH - 5]])
    mask = torch.arange(LENGTH) < lengths
    mask = mask if side == "right" else mask.flip(1)
    return {"input_ids": ids.masked_fill(~mask, 0), "attention_mask": mask.long()}


def _causal(g: torch.Generator) -> dict[str, Tensor]:
    batch = _text(g)
    return batch | {"labels": batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)}


def _masked(g: torch.Generator) -> dict[str, Tensor]:
    batch = _text(g)
    hidden = (torch.rand(BATCH, LENGTH, generator=g) < 0.3) & (batch["attention_mask"] == 1)
    hidden[:, 0] = True
    labels = batch["input_ids"].masked_fill(~hidden, -100)
    return batch | {"input_ids": batch["input_ids"].masked_fill(hidden, 2), "labels": labels}


def _unpadded(g: torch.Generator) -> dict[str, Tensor]:
    ids = torch.randint(3, VOCAB, (BATCH, LENGTH), generator=g)
    return {"input_ids": ids, "labels": ids.clone()}


def _classes(g: torch.Generator) -> dict[str, Tensor]:
    return _text(g) | {"labels": torch.randint(0, CLASSES, (BATCH,), generator=g)}


def _tokens(g: torch.Generator) -> dict[str, Tensor]:
    batch = _text(g)
    labels = torch.randint(0, CLASSES, (BATCH, LENGTH), generator=g)
    return batch | {"labels": labels.masked_fill(batch["attention_mask"] == 0, -100)}


def _seq2seq(g: torch.Generator) -> dict[str, Tensor]:
    labels = torch.randint(3, VOCAB, (BATCH, 7), generator=g)
    labels[2, 5:] = -100
    return _text(g) | {"labels": labels}


def _image(g: torch.Generator, size: int = 16) -> dict[str, Tensor]:
    labels = torch.randint(0, CLASSES, (BATCH,), generator=g)
    return {"pixel_values": torch.randn(BATCH, 3, size, size, generator=g), "labels": labels}


def _detect(g: torch.Generator) -> dict[str, Any]:
    labels = [
        {
            "class_labels": torch.randint(0, CLASSES, (2,), generator=g),
            "boxes": torch.rand(2, 4, generator=g) * 0.4 + 0.2,
        }
        for _ in range(BATCH)
    ]
    return {"pixel_values": torch.randn(BATCH, 3, 16, 16, generator=g), "labels": labels}


def _ctc(g: torch.Generator) -> dict[str, Tensor]:
    lengths = torch.tensor([[240], [220], [200], [160]])
    mask = torch.arange(240) < lengths
    sound = torch.randn(BATCH, 240, generator=g).masked_fill(~mask, 0.0)
    return {
        "input_values": sound,
        "attention_mask": mask.long(),
        "labels": torch.randint(3, VOCAB, (BATCH, 5), generator=g),
    }


def _features(g: torch.Generator) -> dict[str, Tensor]:
    mask = torch.arange(20) < torch.tensor([[20], [16], [12], [12]])
    return {
        "input_features": torch.randn(BATCH, 20, 8, generator=g).masked_fill(~mask.unsqueeze(-1), 0.0),
        "attention_mask": mask.long(),
        "labels": torch.randint(3, VOCAB, (BATCH, 7), generator=g),
    }


def _contrastive(g: torch.Generator) -> dict[str, Any]:
    text = _text(g)
    return text | {"pixel_values": torch.randn(BATCH, 3, 16, 16, generator=g), "return_loss": True}


def _unmasked_pairs(g: torch.Generator) -> dict[str, Any]:
    """As SigLIP's processor makes them: padded, and no mask."""
    return {key: value for key, value in _contrastive(g).items() if key != "attention_mask"}


BATCHES: dict[str, Any] = models.BATCHES | {
    "causal": _causal,
    "masked": _masked,
    "unpadded": _unpadded,
    "classes": _classes,
    "tokens": _tokens,
    "seq2seq": _seq2seq,
    "image": _image,
    "image32": lambda g: _image(g, 32),
    "detect": _detect,
    "ctc": _ctc,
    "features": _features,
    "contrastive": _contrastive,
    "unmasked-pairs": _unmasked_pairs,
    "pixels": lambda g: {"pixel_values": torch.randn(BATCH, 3, 16, 16, generator=g)},
    "spectrogram": lambda g: {
        "input_values": torch.randn(BATCH, 16, 8, generator=g),
        "labels": torch.randint(0, CLASSES, (BATCH,), generator=g),
    },
    "series": lambda g: {
        "past_values": torch.randn(BATCH, 16, 3, generator=g),
        "future_values": torch.randn(BATCH, 4, 3, generator=g),
    },
}
