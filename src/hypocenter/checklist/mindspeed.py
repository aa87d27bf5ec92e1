"""Arguments that MindSpeed and MindSpeed-LLM add to Megatron-LM's, in Megatron-LM's items.

MindSpeed patches Megatron-LM in place (mindspeed.megatron_adaptor), so that a launch script mixes both. Looked up in
MindSpeed-LLM of August 2026: mindspeed_llm/features_manager and its examples.
"""

from __future__ import annotations

from hypocenter.checklist.file_entries import FileEntries
from hypocenter.checklist.words import number, whole

_FUSIONS = {  # item -> MindSpeed's switch; its own kernels take the place of Megatron-LM's
    "fused.rope": "use_fused_rotary_pos_emb",
    "fused.norm": "use_fused_rmsnorm",
    "fused.swiglu": "use_fused_swiglu",
    "moe.fused_permute": "use_fused_moe_token_permute_and_unpermute",
}
_FLOAT32 = {  # item -> switch that keeps it in float32
    "moe.router_dtype": "router_gating_in_fp32",
    "precision.norm_params_dtype": "rmsnorm_weight_in_fp32",
}


def settle(sheet: FileEntries) -> None:
    """Set what MindSpeed's arguments say, after Megatron-LM's own have been settled."""
    for item, key in _FUSIONS.items():
        if sheet.is_on(key):
            sheet.set(item, True, key)
    for item, key in _FLOAT32.items():
        if sheet.is_on(key):
            sheet.set(item, "float32", key)
    _layers(sheet)
    _positions(sheet)
    _experts(sheet)
    if sheet.is_on("post_norm"):
        sheet.set("model.norm_position", "sandwich", "post_norm", derived="a norm after attention and MLP as well")
    if sheet.is_on("add_dense_bias"):
        sheet.set("model.attention_output_bias", True, "add_dense_bias")
    if (size := sheet.number("sliding_window_size") or sheet.number("sliding_window")) is not None:
        sheet.set("model.sliding_window", size, "sliding_window_size", "sliding_window")
    if (scalar := sheet.number("query_pre_attn_scalar")) is not None and scalar > 0:
        why = "1 / sqrt(query_pre_attn_scalar)"
        sheet.set("model.softmax_scale", float(scalar) ** -0.5, "query_pre_attn_scalar", derived=why)
    if sheet.is_on("neat_pack") or sheet.is_on("pack"):
        sheet.set("data.packing", True, "neat_pack", "pack")
    if sheet.is_on("npu_deterministic"):
        sheet.set("other.deterministic", True, "npu_deterministic", "deterministic_mode")
    if sheet.says("tokenizer_name_or_path") and not sheet.says("tokenizer_model"):
        sheet.set("data.tokenizer", sheet.value("tokenizer_name_or_path"), "tokenizer_name_or_path", "tokenizer_type")


def _layers(sheet: FileEntries) -> None:
    """Set the number of layers without those that do nothing but fill up stages of a pipeline."""
    layers, idle = sheet.number("num_layers"), sheet.value("noop_layers")
    if layers is None or idle is None:
        return
    n_idle = len([part for part in str(idle).split(",") if part.strip()]) if not isinstance(idle, tuple) else len(idle)
    sheet.set(
        "model.num_layers", layers - n_idle, "num_layers", "noop_layers", derived="num_layers without noop_layers"
    )


def _positions(sheet: FileEntries) -> None:
    if (share := number(sheet.value("partial_rotary_factor"))) not in (None, 0, 0.0):
        sheet.set("model.rotary_fraction", share, "partial_rotary_factor", "rotary_percent")
    kind = sheet.value("rope_scaling_type")
    if kind is not None:
        factor = whole(sheet.value("rope_scaling_factor", 1.0))
        sheet.set("model.rope_scaling", f"{kind}:{factor}", "rope_scaling_type", "rope_scaling_factor")


def _experts(sheet: FileEntries) -> None:
    if not sheet.number("num_experts"):
        return
    if sheet.is_on("norm_topk_prob"):
        sheet.set("moe.norm_topk_prob", True, "norm_topk_prob", "moe_router_pre_softmax")
    if sheet.is_on("seq_aux"):
        sheet.set("moe.load_balancing", "seq_aux_loss", "seq_aux", "moe_router_load_balancing_type")
        sheet.set("moe.aux_loss_coeff", number(sheet.value("moe_aux_loss_coeff", 0.0)), "moe_aux_loss_coeff", "seq_aux")
    if (dense := sheet.number("first_k_dense_replace")) is not None:
        sheet.set("moe.n_dense_layers", dense, "first_k_dense_replace")
    shared = sheet.number("n_shared_experts")
    size = sheet.number("moe_ffn_hidden_size") or sheet.number("moe_intermediate_size")
    if shared is not None and size is not None:
        keys = ("n_shared_experts", "moe_ffn_hidden_size", "moe_intermediate_size")
        sheet.set("moe.shared_expert_size", shared * size, *keys, derived="n_shared_experts * moe_ffn_hidden_size")
