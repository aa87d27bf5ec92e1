"""Keys of config.json that say something only together, and what the model's code does whatever they say."""

from __future__ import annotations

from functools import cache
from typing import Any

from hypocenter.checklist.checklist import Entry, Given, Value
from hypocenter.checklist.file_entries import FileEntries, framework
from hypocenter.checklist.tables import read_toml, table
from hypocenter.checklist.words import boolean, canonical, dtype, gated, number, whole

_ACTIVATIONS = (
    "hidden_act",
    "activation_function",
    "hidden_activation",
    "activation",
    "dense_act_fn",
    "feed_forward_proj",
)
_ALL_BIASES = {
    "attention_bias": ("model.qkv_bias", "model.attention_output_bias"),
    "bias": ("model.qkv_bias", "model.attention_output_bias", "model.mlp_bias"),
    "use_bias": ("model.qkv_bias", "model.attention_output_bias", "model.mlp_bias"),
    "enable_bias": ("model.qkv_bias", "model.attention_output_bias", "model.mlp_bias"),
    "qkv_bias": ("model.qkv_bias",), "use_qkv_bias": ("model.qkv_bias",), "mlp_bias": ("model.mlp_bias",),
}  # fmt: skip
_FUSED = {"flash_attention_2": True, "flash_attention_3": True, "sdpa": True, "flex_attention": True, "eager": False}


@framework("hf_config")
def settle(sheet: FileEntries) -> None:
    """Everything that more than one key says, and the defaults of the model's configuration class."""
    _settle(sheet, str(sheet.value("model_type") or ""))
    _defaults(sheet)


@cache
def models() -> dict[str, Any]:
    """Read what is known of each model type: `gated`, `defaults` by key, `facts` by item."""
    types = read_toml("hf_models")
    facts = {kind: of.get("facts", {}) for kind, of in types.items()}
    return {
        kind: {"gated": False, **of, "facts": {**facts.get(of.get("like"), {}), **facts[kind]}}
        for kind, of in types.items()
    }


def _defaults(sheet: FileEntries) -> None:
    """Settle the class's defaults in the same way as what is said; what is new then is assumed."""
    known = models().get(str(sheet.value("model_type") or ""))
    if known is None:
        if sheet.says("model_type"):
            sheet.note(f"defaults of the model type {sheet.value('model_type')!r} are not known here")
        return
    said = set(sheet.present())
    named = {_item(key): key for key in said if _item(key) and sheet.value(key) is not None}
    added = [
        Entry(key=key, value=value, spelled="")
        for key, value in known["defaults"].items()
        if key not in said and _item(key) not in named
    ]
    kept = [entry for entry in sheet.given.entries if entry.value is not None]
    both = FileEntries(Given(kind="", table="hf_config", entries=(*added, *kept)), table("hf_config"))
    both.start()
    _settle(both, str(sheet.value("model_type")))
    part = both.close()
    for item, setting in {**part.assumed, **part.settings}.items():
        sheet.assume(item, setting.value, setting.derived)
    for item, value in known["facts"].items():
        sheet.assume(item, value)


def _item(key: str) -> str:
    return table("hf_config").item_of(key)[0]


def _settle(sheet: FileEntries, kind: str) -> None:
    if kind:
        sheet.set("model.architecture", kind, "model_type")
    _format(sheet)
    _activation(sheet, kind)
    _heads(sheet)
    _positions(sheet, kind)
    _biases(sheet)
    _experts(sheet, kind)
    _window(sheet)
    _rest(sheet, kind)


def _leaves_to_class(sheet: FileEntries, key: str) -> bool:
    """Return whether the key is absent (`null` is not) and the model's class has a default for it."""
    kind = str(sheet.value("model_type") or "")
    return not sheet.has(key) and key in models().get(kind, {}).get("defaults", {})


def _format(sheet: FileEntries) -> None:
    key = sheet.first("dtype", "torch_dtype")
    if key and sheet.value(key) != "auto":
        sheet.set("precision.params_dtype", dtype(sheet.value(key)), key)


def _activation(sheet: FileEntries, kind: str) -> None:
    key = sheet.first(*_ACTIVATIONS)
    if key is None:
        return
    text = str(sheet.value(key))
    is_gated = models().get(kind, {}).get("gated", False) or bool(boolean(sheet.value("is_gated_act", False)))
    if key == "feed_forward_proj" and text.startswith("gated-"):
        is_gated, text = True, {"gelu": "gelu_new"}.get(text[6:], text[6:])
    found = canonical("model.activation", text)
    why = f"{key} within a gated unit, as {kind or 'the configuration'} has" if is_gated else None
    sheet.set("model.activation", gated(found) if is_gated else found, key, "is_gated_act", derived=why)


def _heads(sheet: FileEntries) -> None:
    heads = sheet.number("num_attention_heads", "n_head", "n_heads", "num_heads")
    key = sheet.first("num_key_value_heads", "num_kv_heads", "multi_query_group_num")
    is_multi_query = boolean(sheet.value("multi_query", False)) is True
    if key is not None and (key != "num_kv_heads" or boolean(sheet.value("new_decoder_architecture", True))):
        sheet.set("model.num_key_value_heads", whole(sheet.value(key)), key)
    elif is_multi_query and not boolean(sheet.value("new_decoder_architecture", False)):
        sheet.set("model.num_key_value_heads", 1, "multi_query", "new_decoder_architecture")
    elif heads is not None and not _leaves_to_class(sheet, "num_key_value_heads"):
        keys = ("num_attention_heads", "n_head", "n_heads", "num_heads")
        sheet.set("model.num_key_value_heads", heads, *keys, derived="num_attention_heads")
    hidden = sheet.number("hidden_size", "n_embd", "d_model", "dim")
    said = sheet.number("intermediate_size", "n_inner", "d_ff", "ffn_dim", "ffn_hidden_size", "hidden_dim")
    if said is None and hidden is not None and sheet.value("model_type") in ("gpt2", "gptj", "bloom", "falcon"):
        keys = ("hidden_size", "n_embd", "n_inner", "ffn_hidden_size")
        sheet.set("model.intermediate_size", 4 * hidden, *keys, derived="4 * hidden_size")


def _positions(sheet: FileEntries, kind: str) -> None:
    facts = models().get(kind, {}).get("facts", {})
    position = facts.get("model.position_embedding")
    if boolean(sheet.value("alibi", False)) is True:
        position = "alibi"
        sheet.set("model.position_embedding", "alibi", "alibi")
    elif sheet.says("position_embedding_type"):
        word = canonical("model.position_embedding", sheet.value("position_embedding_type"))
        position = position if word == "learned" and position else word
        sheet.set("model.position_embedding", position, "position_embedding_type")
    if position not in (None, "rope") and not sheet.says("rope_theta", "rope_parameters.rope_theta"):
        return
    _scaling(sheet, position == "rope")
    head = sheet.number("head_dim")
    hidden, n = sheet.number("hidden_size", "n_embd"), sheet.number("num_attention_heads", "n_head")
    head = head or (hidden // n if hidden and n else None)
    names = ("rope_parameters.partial_rotary_factor", "partial_rotary_factor", "rotary_pct", "rotary_percentage")
    key = sheet.first(*names)
    if key:
        sheet.set("model.rotary_fraction", number(sheet.value(key)), key)
    elif sheet.says("rotary_dim") and head:
        size = sheet.number("rotary_dim") or head
        sheet.set("model.rotary_fraction", size / head, "rotary_dim", derived="rotary_dim / head_dim")
    elif position == "rope":
        sheet.assume("model.rotary_fraction", 1.0)


def _scaling(sheet: FileEntries, is_rope: bool) -> None:
    """Set the scaling of positions as kind and factor: `linear:2`, `llama3:8`, `yarn:40`."""
    keys = [
        key
        for key in sheet.present()
        if key.startswith(("rope_scaling", "rope_parameters")) and key != "rope_parameters.rope_theta"
    ]
    kind = next((sheet.value(key) for key in keys if key.endswith((".rope_type", ".type"))), None)
    factor = next((whole(sheet.value(key)) for key in keys if key.endswith(".factor")), None)
    if kind in (None, "default") and factor is None:
        if is_rope:
            if keys:
                sheet.set("model.rope_scaling", "none", *keys)
            else:
                sheet.assume("model.rope_scaling", "none")
        return
    sheet.set("model.rope_scaling", f"{kind or 'linear'}:{factor}" if factor is not None else str(kind), *keys)


def _biases(sheet: FileEntries) -> None:
    for key, items in _ALL_BIASES.items():
        if sheet.says(key):
            for item in items:
                facts = models().get(str(sheet.value("model_type") or ""), {}).get("facts", {})
                if item not in facts or item == "model.qkv_bias":
                    sheet.set(item, sheet.value(key), key)
    if sheet.says("no_bias"):
        on = not boolean(sheet.value("no_bias"))
        for item in ("model.qkv_bias", "model.attention_output_bias", "model.mlp_bias"):
            sheet.set(item, on, "no_bias")


def _experts(sheet: FileEntries, kind: str) -> None:
    key = sheet.first("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    if key is None:
        return
    sheet.set("moe.num_experts", whole(sheet.value(key)), key)
    sheet.assume("moe.capacity_factor", None, "no token is dropped")
    size = sheet.number("moe_intermediate_size")
    shared = sheet.number("n_shared_experts")
    if shared is not None and size is not None:
        why = "n_shared_experts * moe_intermediate_size"
        sheet.set("moe.shared_expert_size", shared * size, "n_shared_experts", "moe_intermediate_size", derived=why)
    if size is None and sheet.says("intermediate_size"):
        value = sheet.value("intermediate_size")
        sheet.set("moe.expert_intermediate_size", value, "intermediate_size", derived="intermediate_size")
    if kind in ("mixtral", "gpt_oss", "qwen2_moe", "qwen3_moe"):
        sheet.assume("moe.router_score", "softmax")
    elif kind == "deepseek_v3":
        sheet.assume("moe.router_score", "sigmoid")


def _window(sheet: FileEntries) -> None:
    defaults = models().get(str(sheet.value("model_type") or ""), {}).get("defaults", {})
    if boolean(sheet.value("use_sliding_window", defaults.get("use_sliding_window", True))) is False:
        why = "use_sliding_window is off"
        sheet.set("model.sliding_window", None, "use_sliding_window", "sliding_window", derived=why)
    elif sheet.says("sliding_window"):
        sheet.set("model.sliding_window", whole(sheet.value("sliding_window")), "sliding_window", "use_sliding_window")
    else:
        sheet.assume("model.sliding_window", None)


def _rest(sheet: FileEntries, kind: str) -> None:
    key = sheet.first("_attn_implementation", "attn_implementation")
    if key:
        word = str(sheet.value(key))
        sheet.set("fused.attention", _FUSED.get(word, word), key)
    scalar = sheet.number("query_pre_attn_scalar")
    if scalar and scalar > 0:
        sheet.set("model.softmax_scale", scalar**-0.5, "query_pre_attn_scalar", derived="query_pre_attn_scalar ** -0.5")
    for key in ("logit_scale", "logits_scaling"):
        if sheet.says(key):
            sheet.set("model.logit_scale", _logit_scale(key, sheet.value(key)), key)
    if sheet.says("do_layer_norm_before"):
        on = boolean(sheet.value("do_layer_norm_before"))
        sheet.set("model.norm_position", "pre" if on else "post", "do_layer_norm_before")
    parallel = sheet.first("use_parallel_residual", "parallel_attn")
    if parallel:
        on = boolean(sheet.value(parallel))
        sheet.set("model.norm_position", "parallel" if on else "pre", parallel)
    if sheet.says("apply_residual_connection_post_layernorm"):
        on = boolean(sheet.value("apply_residual_connection_post_layernorm"))
        position = "residual-after-norm" if on else "pre"
        sheet.set("model.norm_position", position, "apply_residual_connection_post_layernorm")
    key = sheet.first("normalization", "norm_type")
    if key:
        sheet.set("model.norm_type", sheet.value(key), key)
    elif not kind and sheet.says("rms_norm_eps"):
        sheet.assume("model.norm_type", "rmsnorm", "rms_norm_eps is set")


def _logit_scale(key: str, value: Value) -> Value:
    found = number(value)
    is_divisor = key == "logits_scaling" and isinstance(found, (int, float)) and found
    return 1 / found if is_divisor else found  # type: ignore[operator]
