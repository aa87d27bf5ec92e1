"""The words and numbers of frameworks in those of the items: formats, activations, norms, schedules, optimizers."""

from __future__ import annotations

import ast
import math
from typing import Any

from hypocenter.checklist.checklist import Scalar, Value

_DTYPES = {
    "fp64": "float64", "double": "float64", "float64": "float64", "torch.float64": "float64",
    "fp32": "float32", "float": "float32", "float32": "float32", "torch.float": "float32", "single": "float32",
    "fp16": "float16", "half": "float16", "float16": "float16",
    "bf16": "bfloat16", "bfloat16": "bfloat16", "bfloat": "bfloat16",
    "no": "float32", "fp8": "float8", "float8": "float8", "fp8_e4m3": "float8", "float8_e4m3fn": "float8",
}  # fmt: skip
_ACTIVATIONS = {
    "gelu_new": "gelu_tanh", "gelu_fast": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu_accurate": "gelu_tanh",
    "fast_gelu": "gelu_tanh", "fastgelu": "gelu_tanh", "gelu_python": "gelu", "gelu_10": "gelu_10",
    "swish": "silu", "silu": "silu", "relu2": "squared_relu", "squared_relu": "squared_relu", "relu": "relu",
    "gelu": "gelu", "quick_gelu": "quick_gelu", "quick_geglu": "quick_geglu", "swiglu": "swiglu", "geglu": "geglu",
    "gated-gelu": "geglu_tanh", "gated-silu": "swiglu",
}  # fmt: skip
_GATED = {"silu": "swiglu", "gelu": "geglu", "gelu_tanh": "geglu_tanh", "relu": "reglu", "quick_gelu": "quick_geglu"}
_NORMS = {
    "layernorm": "layernorm", "layer_norm": "layernorm", "rmsnorm": "rmsnorm", "rms_norm": "rmsnorm",
    "fused_rmsnorm": "rmsnorm", "np_layernorm": "layernorm_without_weight", "fusedlayernorm": "layernorm",
    "fusedrmsnorm": "rmsnorm", "l2norm": "l2norm",
}  # fmt: skip
_SCHEDULES = {
    "constant": "constant", "linear": "linear", "cosine": "cosine", "inverse_sqrt": "inverse_sqrt",
    "inverse-square-root": "inverse_sqrt", "wsd": "wsd", "warmup_stable_decay": "wsd",
    "constant_with_warmup": "constant", "polynomial": "polynomial", "cosine_with_restarts": "cosine_with_restarts",
    "cosine_with_min_lr": "cosine", "cosine_warmup_with_min_lr": "cosine", "reduce_lr_on_plateau": "plateau",
    "warmuplr": "constant", "warmupdecaylr": "linear", "warmupcosinelr": "cosine", "onecycle": "onecycle",
    "lrrangetest": "lr_range_test",
    "constantwarmuplr": "constant", "linearwithwarmuplr": "linear", "cosinewithwarmuplr": "cosine",
    "cosinewithrestartsandwarmuplr": "cosine_with_restarts", "polynomialwithwarmuplr": "polynomial",
    "warmupstabledecaylr": "wsd", "constantwithcooldownlr": "constant_with_cooldown", "cosineannealinglr": "cosine",
    "steplr": "step", "lambdalr": "lambda", "sqrt": "sqrt",
}  # fmt: skip
_OPTIMIZERS = {
    "adam": "adam", "adamw": "adamw", "fusedadam": "adamw", "adamw_torch": "adamw", "adamw_torch_fused": "adamw",
    "adamw_hf": "adamw", "adamw_apex_fused": "adamw", "adamw_torch_xla": "adamw", "adamw_torch_npu_fused": "adamw",
    "adamw_anyprecision": "adamw", "adamw_bnb_8bit": "adamw_8bit", "adamw_8bit": "adamw_8bit",
    "paged_adamw_8bit": "adamw_8bit", "paged_adamw_32bit": "adamw", "paged_adamw": "adamw",
    "deepspeedcpuadam": "adamw", "fusedadamw": "adamw", "basicadamw": "adamw", "pmaadamw": "pma_adamw",
    "fp32stateadamweightdecay": "adamw", "adamweightdecay": "adamw", "fusedadamweightdecay": "adamw",
    "hypocenteradamw": "adamw", "sgd": "sgd", "adafactor": "adafactor", "lion": "lion", "muon": "muon", "lamb": "lamb",
    "momentum": "sgd", "onebitadam": "onebit_adam", "adagrad": "adagrad", "came": "came",
}  # fmt: skip
_POSITIONS = {
    "rope": "rope", "rotary": "rope", "learned_absolute": "learned", "absolute": "learned", "learned": "learned",
    "none": "none", "alibi": "alibi", "mrope": "mrope", "relative": "relative", "yarn": "rope",
    "relative_key": "relative_key", "relative_key_query": "relative_key_query", "sinusoidal": "sinusoidal",
    "partial_rope": "rope",
}  # fmt: skip
_TRUE, _FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


def dtype(value: Any) -> Any:
    """Return `bfloat16` for `bf16`, `torch.bfloat16`, `BF16`; what is no format as it is."""
    word = str(value).strip().lower().removeprefix("torch.").removeprefix("mstype.").removeprefix("ms.")
    return _DTYPES.get(word, word)


def gated(activation: Value) -> Value:
    """Return the name of a gated unit with this activation: `swiglu` for `silu`."""
    return _GATED.get(str(activation), f"gated_{activation}")


def number(value: Any) -> Any:
    """Return the number of a text that is one (an integer stays an int); other values as they are."""
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return value
    if isinstance(value, str):
        text = value.strip()
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:  # also an integer of more digits than Python reads
                continue
    return value


def product(factor: float, number: float) -> float:
    """Return the product as a person would write it: 0.1 * 3e-4 is 3e-5, not 2.9999999999999997e-05."""
    return float(f"{factor * number:.12g}")


def whole(value: Any) -> Any:
    """Return a number as `number` does, and whole floats as int: 4096 for 4096.0."""
    found = number(value)
    if isinstance(found, float) and math.isfinite(found) and found.is_integer() and abs(found) < 2.0**53:
        return int(found)
    return found


def boolean(value: Any) -> Any:
    """Return True or False for the words for them; other values as they are."""
    if isinstance(value, str):
        word = value.strip().lower()
        return True if word in _TRUE else False if word in _FALSE else value
    return bool(value) if isinstance(value, (int, float)) else value


def literal(text: str) -> Any:
    """Return the value of what Python printed: True, 0.9, [1, 2], or the text itself. Executes nothing."""
    text = text.strip()
    if len(text) > 10_000:
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text
    return value if isinstance(value, (bool, int, float, str, list, tuple)) or value is None else text


def plain(value: Any) -> Value:
    """Return any value as a scalar or a tuple of scalars; what is neither as its text."""
    if isinstance(value, (list, tuple)):
        return tuple(_scalar(part) for part in value)  # type: ignore[union-attr]
    return _scalar(value)


def _scalar(value: Any) -> Scalar:
    return value if isinstance(value, (bool, int, float, str)) or value is None else str(value)[:1000]


def _word(words: dict[str, str], value: Any) -> Any:
    text = str(value).strip().lower()
    return words.get(text, text)


_BY_ITEM = {
    "model.activation": _ACTIVATIONS, "model.norm_type": _NORMS, "optimizer.lr_schedule": _SCHEDULES,
    "optimizer.type": _OPTIMIZERS, "model.position_embedding": _POSITIONS,
}  # fmt: skip
_BOOLEANS = {
    "model.norm_weight_plus_one", "model.rotary_interleaved", "model.tie_word_embeddings", "model.qkv_bias",
    "model.mlp_bias", "model.attention_output_bias", "model.head_bias", "model.fused_qkv", "model.qk_norm",
    "fused.attention", "fused.rope", "fused.norm", "fused.swiglu", "fused.cross_entropy", "moe.fused_permute",
    "moe.shared_expert_gate", "moe.norm_topk_prob", "moe.expert_bias", "optimizer.decay_bias_and_norm",
    "precision.tf32", "parallel.sequence_parallel", "parallel.distributed_optimizer", "data.shuffle",
    "data.reset_position_ids", "data.reset_attention_mask", "data.eod_mask_loss", "other.graph_fusion",
    "other.deterministic",
}  # fmt: skip
_TEXTS = {
    "model.architecture", "weights.load_path", "data.tokenizer", "data.dataset", "data.template", "weights.init_method",
}  # fmt: skip
_COUNTS = ("_size", "_steps", "_layers", "_heads", "_experts", "top_k", "_length", "_embeddings", "_dim", "_id", "seed")


def canonical(item: str, value: Value) -> Value:
    """Return the value of a key in the words and units of its item."""
    if isinstance(value, tuple):
        return tuple(number(part) for part in value)
    if value is None:
        return None
    if item.endswith("_dtype"):
        return dtype(value)
    if item in _BY_ITEM:
        return _word(_BY_ITEM[item], value)
    if item in _BOOLEANS:
        return boolean(value)
    if item in _TEXTS or item.startswith("other.versions."):
        return str(value)
    if isinstance(value, bool):
        return value
    return whole(value) if item.endswith(_COUNTS) or item.startswith("parallel.") else number(value)
