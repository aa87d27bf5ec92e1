"""Arguments of Megatron-LM that say something only together, as its own checks of arguments put them together.

Looked up in Megatron-LM 0.12: megatron/training/arguments.py and the modules that its arguments reach.
"""

from __future__ import annotations

from typing import Any

from hypocenter.checklist import mindspeed
from hypocenter.checklist.checklist import Value
from hypocenter.checklist.file_entries import FileEntries, framework
from hypocenter.checklist.words import canonical, dtype, gated, number, whole


@framework("megatron")
def settle(sheet: FileEntries) -> None:
    """Everything that more than one argument says."""
    _formats(sheet)
    _activation(sheet)
    _positions(sheet)
    _attention(sheet)
    _biases(sheet)
    _sizes(sheet)
    _experts(sheet)
    _steps(sheet)
    _weights(sheet)
    _parallel(sheet)
    _data(sheet)
    _fusions(sheet)
    mindspeed.settle(sheet)


def _put(sheet: FileEntries, item: str, value: Value, *keys: str, derived: str | None = None) -> None:
    """Set the item as said when any of the keys is there, else as a default."""
    if any(sheet.has(key) for key in keys):
        sheet.set(item, value, *keys, derived=derived)
    else:
        sheet.assume(item, value, derived)


def _formats(sheet: FileEntries) -> None:
    given = sheet.value("params_dtype")
    half = "float16" if sheet.is_on("fp16") else "bfloat16" if sheet.is_on("bf16") else None
    found = dtype(given) if given is not None else half or "float32"
    keys = (
        ("params_dtype", "fp16", "bf16") if half is None else ("fp16" if half == "float16" else "bf16", "params_dtype")
    )
    for item in ("precision.compute_dtype", "precision.params_dtype", "weights.init_dtype"):
        _put(sheet, item, found, *keys)
    for item in ("precision.embedding_dtype", "precision.head_dtype"):
        _put(sheet, item, found, *keys, derived="the format of the parameters")
    _reduction(sheet, found)
    softmax = sheet.is_on("attention_softmax_in_fp32") or sheet.is_on("apply_query_key_layer_scaling")
    keys = ("attention_softmax_in_fp32", "apply_query_key_layer_scaling")
    _put(sheet, "precision.softmax_dtype", "float32" if softmax else found, *keys, derived=_unfused(softmax))
    residual = "float32" if sheet.is_on("fp32_residual_connection") else found
    _put(sheet, "precision.residual_dtype", residual, "fp32_residual_connection")
    loss = "float16" if sheet.is_on("fp16_lm_cross_entropy") else "float32"
    _put(sheet, "precision.loss_dtype", loss, "fp16_lm_cross_entropy")
    if sheet.says("loss_scale"):
        sheet.set("precision.loss_scale", sheet.value("loss_scale"), "loss_scale", "initial_loss_scale")
    else:
        _put(sheet, "precision.loss_scale", "dynamic" if half == "float16" else "none", "initial_loss_scale")


def _unfused(softmax: bool) -> str | None:
    return None if softmax else "where attention is not fused; fused attention keeps its softmax in float32"


def _reduction(sheet: FileEntries, params: Value) -> None:
    """Set the format of gradient reduction: float32 with bfloat16 parameters unless it is said otherwise."""
    keys = ("grad_reduce_in_bf16", "accumulate_allreduce_grads_in_fp32", "main_grads_dtype")
    if sheet.is_on("grad_reduce_in_bf16"):
        sheet.set("precision.grad_reduce_dtype", "bfloat16", *keys)
    elif sheet.is_on("accumulate_allreduce_grads_in_fp32"):
        sheet.set("precision.grad_reduce_dtype", "float32", *keys)
    else:
        main = dtype(sheet.value("main_grads_dtype", "fp32"))
        turned_on = params == "bfloat16" and main == "float32" and not sheet.says("accumulate_allreduce_grads_in_fp32")
        derived = "with bf16 it is turned on by Megatron-LM" if turned_on else "the format of the parameters"
        _put(sheet, "precision.grad_reduce_dtype", "float32" if turned_on else params, *keys, derived=derived)


def _activation(sheet: FileEntries) -> None:
    item = "model.activation"
    keys = ("swiglu", "squared_relu", "openai_gelu", "quick_geglu")
    if sheet.is_on("swiglu"):
        sheet.set(item, "swiglu", "swiglu")
    elif sheet.is_on("squared_relu"):
        sheet.set(item, "squared_relu", "squared_relu")
    elif sheet.is_on("quick_geglu"):
        sheet.set(item, "quick_geglu", "quick_geglu")
    elif sheet.is_on("openai_gelu"):
        sheet.set(item, "gelu_tanh", "openai_gelu")
    elif sheet.says("activation_func"):
        word = canonical(item, sheet.value("activation_func"))
        sheet.set(item, gated(word) if sheet.is_on("gated_linear_unit") else word, "activation_func")
    elif sheet.is_on("bias_gelu_fusion", True) and sheet.is_on("add_bias_linear", True):
        _put(sheet, item, "gelu_tanh", *keys, derived="bias_gelu_fusion computes GELU by its tanh approximation")
    else:
        why = "without bias_gelu_fusion GELU is exact"
        _put(sheet, item, "gelu", "bias_gelu_fusion", "add_bias_linear", *keys, derived=why)


def _positions(sheet: FileEntries) -> None:
    kind = canonical("model.position_embedding", sheet.value("position_embedding_type", "learned_absolute"))
    keys = ("position_embedding_type", "use_rotary_position_embeddings", "add_position_embedding")
    if sheet.is_on("use_rotary_position_embeddings"):
        kind = "rope"
    elif kind == "learned" and not sheet.is_on("add_position_embedding", True):
        kind = "none"
    _put(sheet, "model.position_embedding", kind, *keys)
    if kind not in ("rope", "mrope"):
        sheet.forget("model.rotary_interleaved")
        return
    base = number(sheet.value("rotary_base", 10000))
    _put(sheet, "model.rope_theta", base, "rotary_base")
    _put(sheet, "model.rotary_fraction", number(sheet.value("rotary_percent", 1.0)), "rotary_percent")
    if sheet.is_on("use_rope_scaling"):
        factor = sheet.value("rope_scaling_factor", 8.0)
        sheet.set("model.rope_scaling", f"llama3:{whole(factor)}", "use_rope_scaling", "rope_scaling_factor")
    elif sheet.says("rotary_seq_len_interpolation_factor"):
        factor = whole(sheet.value("rotary_seq_len_interpolation_factor"))
        sheet.set("model.rope_scaling", f"linear:{factor}", "rotary_seq_len_interpolation_factor")
    elif sheet.says("multi_latent_attention") and sheet.is_on("multi_latent_attention"):
        kind = sheet.value("rope_type", "yarn")
        factor = whole(sheet.value("rotary_scaling_factor", 1.0))
        _put(sheet, "model.rope_scaling", f"{kind}:{factor}", "rope_type", "rotary_scaling_factor")
    else:
        sheet.assume("model.rope_scaling", "none")


def _attention(sheet: FileEntries) -> None:
    heads = sheet.number("num_attention_heads")
    is_grouped = sheet.is_on("group_query_attention")
    if is_grouped:
        groups = sheet.number("num_query_groups")
        sheet.set("model.num_key_value_heads", groups or 1, "num_query_groups", "group_query_attention")
    elif heads is not None:
        why = "num_attention_heads, as group_query_attention is not set"
        _put(sheet, "model.num_key_value_heads", heads, "group_query_attention", "num_query_groups", derived=why)
    if sheet.says("apply_residual_connection_post_layernorm"):
        is_post = sheet.is_on("apply_residual_connection_post_layernorm")
        position = "residual-after-norm" if is_post else "pre"
        sheet.set("model.norm_position", position, "apply_residual_connection_post_layernorm")
    window = sheet.value("window_size")
    if window is not None:
        size = number(window[0]) if isinstance(window, tuple) and window else window
        sheet.set("model.sliding_window", size, "window_size")
    else:
        sheet.assume("model.sliding_window", None)


def _biases(sheet: FileEntries) -> None:
    on = sheet.is_on("add_bias_linear", True)
    for item in ("model.mlp_bias", "model.attention_output_bias"):
        _put(sheet, item, on, "add_bias_linear")
    _put(sheet, "model.qkv_bias", on or sheet.is_on("add_qkv_bias"), "add_qkv_bias", "add_bias_linear")


def _sizes(sheet: FileEntries) -> None:
    hidden = sheet.number("hidden_size")
    if hidden is not None and not sheet.says("ffn_hidden_size"):
        if sheet.said("model.activation") == "swiglu":
            size, why = int(4 * hidden * 2 / 3 / 64) * 64, "8/3 of hidden_size, down to a multiple of 64"
        else:
            size, why = 4 * hidden, "4 * hidden_size"
        sheet.assume("model.intermediate_size", size, why)
    if not sheet.says("num_layers", "num_experts") and sheet.says("encoder_num_layers"):
        sheet.set("model.num_layers", sheet.value("encoder_num_layers"), "encoder_num_layers")
    if not sheet.says("seq_length") and sheet.says("encoder_seq_length"):
        sheet.set("model.seq_length", sheet.value("encoder_seq_length"), "encoder_seq_length")
    vocab, tensor = sheet.number("vocab_size"), sheet.number("tensor_model_parallel_size") or 1
    if sheet.says("vocab_size") or sheet.has("vocab_size"):
        sheet.set("model.vocab_size", sheet.value("vocab_size"), "vocab_size")
    is_lost = sheet.is_lost("tensor_model_parallel_size") or sheet.is_lost("make_vocab_size_divisible_by")
    if vocab is not None and not is_lost and not sheet.says("padded_vocab_size"):
        multiple = (sheet.number("make_vocab_size_divisible_by") or 128) * tensor
        why = f"vocab_size up to a multiple of {multiple}"
        keys = ("make_vocab_size_divisible_by", "vocab_size")
        sheet.set("model.padded_vocab_size", -(-vocab // multiple) * multiple, *keys, derived=why)


def _experts(sheet: FileEntries) -> None:
    if not sheet.number("num_experts"):
        return
    kind = sheet.value("moe_router_load_balancing_type", "aux_loss")
    coefficient = number(sheet.value("moe_aux_loss_coeff", 0.0))
    is_used = "aux_loss" in str(kind) or "global_aux_loss" in str(kind)
    _put(sheet, "moe.aux_loss_coeff", coefficient if is_used else 0.0, "moe_aux_loss_coeff")
    before = sheet.is_on("moe_router_pre_softmax")
    why = "softmax over all experts, then the best" if before else "softmax over the chosen experts"
    _put(sheet, "moe.norm_topk_prob", not before, "moe_router_pre_softmax", derived=why)
    sheet.assume("moe.router_dtype", sheet.said("precision.compute_dtype"), "the format of the activations")
    sheet.assume("moe.capacity_factor", None, "no token is dropped")
    size = sheet.said("model.intermediate_size")
    if size is not None:
        sheet.assume("moe.expert_intermediate_size", size, "ffn_hidden_size")


def _steps(sheet: FileEntries) -> None:
    """Set lengths in steps; samples are divided by the global batch."""
    batch = sheet.number("global_batch_size")
    total = _in_steps(sheet, "optimizer.total_steps", "train_iters", "train_samples", batch)
    decay = _in_steps(sheet, "optimizer.decay_steps", "lr_decay_iters", "lr_decay_samples", batch)
    if decay is None and total is not None:
        sheet.assume("optimizer.decay_steps", total, "the length of the training")
    if sheet.says("lr_warmup_fraction"):
        sheet.set("optimizer.warmup_fraction", sheet.value("lr_warmup_fraction"), "lr_warmup_fraction")
        sheet.forget("optimizer.warmup_steps")
    else:
        _in_steps(sheet, "optimizer.warmup_steps", "lr_warmup_iters", "lr_warmup_samples", batch)
    if sheet.says("rampup_batch_size"):
        sheet.set("batch.rampup", sheet.value("rampup_batch_size"), "rampup_batch_size")
        if sheet.says("train_samples", "lr_decay_samples", "lr_warmup_samples"):
            sheet.note("steps computed of samples are those of the full batch: rampup_batch_size makes some smaller")
    else:
        sheet.assume("batch.rampup", None)
    keys = ("weight_decay_incr_style", "start_weight_decay", "end_weight_decay")
    style = sheet.value("weight_decay_incr_style", "constant")
    is_constant = style == "constant"
    ends = ":".join(str(number(sheet.value(key, ""))) for key in keys[1:])
    _put(sheet, "optimizer.weight_decay_schedule", style if is_constant else f"{style}:{ends}", *keys)


def _in_steps(sheet: FileEntries, item: str, steps: str, samples: str, batch: Any) -> Any:
    found = sheet.number(steps)
    if found:
        sheet.set(item, found, steps)
        return found
    n = sheet.number(samples)
    if n and batch:
        found = n // batch
        sheet.set(item, found, samples, "global_batch_size", derived=f"{samples} / global_batch_size")
        return found
    lost = next((key for key in (steps, samples) if sheet.is_lost(key)), None)
    if lost or (sheet.value(steps) is not None and not n):
        sheet.set(item, sheet.value(steps), lost or steps)
    return found


def _weights(sheet: FileEntries) -> None:
    _put(sheet, "weights.seed", number(sheet.value("seed", 1234)), "seed")
    _put(sheet, "data.seed", number(sheet.value("seed", 1234)), "seed")
    if sheet.says("init_method_xavier_uniform"):
        is_xavier = sheet.is_on("init_method_xavier_uniform")
        sheet.set("weights.init_method", "xavier_uniform" if is_xavier else "normal", "init_method_xavier_uniform")
    if sheet.says("pretrained_checkpoint") and not sheet.says("load"):
        sheet.set("weights.load_path", sheet.value("pretrained_checkpoint"), "pretrained_checkpoint")


def _parallel(sheet: FileEntries) -> None:
    tensor = sheet.number("tensor_model_parallel_size") or 1
    if sheet.has("sequence_parallel"):
        on = sheet.is_on("sequence_parallel")
        why = "turned off by Megatron-LM, as there is no tensor parallelism" if on and tensor == 1 else None
        off = why is not None and not sheet.is_lost("tensor_model_parallel_size")
        sheet.set("parallel.sequence_parallel", on and not off, "sequence_parallel", derived=why if off else None)
    _interleaving(sheet)
    strategy = str(sheet.value("data_parallel_sharding_strategy", "no_shard"))
    stage = {"optim": 1, "optim_grads": 2, "optim_grads_params": 3}.get(strategy, 0)
    keys = ("data_parallel_sharding_strategy", "use_distributed_optimizer", "use_torch_fsdp2")
    if sheet.is_on("use_torch_fsdp2"):
        stage = 3
    elif not stage and sheet.is_on("use_distributed_optimizer"):
        stage = 1
    _put(sheet, "parallel.zero_stage", stage, *keys, derived="how much of the optimizer is spread over data parallel")
    recompute = sheet.value("recompute_granularity") or None
    if recompute is None and (sheet.is_on("recompute_activations")):
        recompute = "selective"
    if recompute is None and (sheet.is_on("checkpoint_activations") or sheet.says("activations_checkpoint_method")):
        recompute = "full"
    keys = ("recompute_granularity", "recompute_activations", "checkpoint_activations", "activations_checkpoint_method")
    _put(sheet, "parallel.recompute", recompute or "none", *keys)


def _interleaving(sheet: FileEntries) -> None:
    keys = ("virtual_pipeline_model_parallel_size", "num_virtual_stages_per_pipeline_rank")
    for key in keys:
        if sheet.says(key):
            sheet.set("parallel.virtual_pipeline", sheet.value(key), key)
            return
    per_chunk, layers = sheet.number("num_layers_per_virtual_pipeline_stage"), sheet.number("num_layers")
    stages = sheet.number("pipeline_model_parallel_size") or 1
    if sheet.is_lost("num_layers_per_virtual_pipeline_stage") or (
        per_chunk and sheet.is_lost("pipeline_model_parallel_size")
    ):
        keys = ("num_layers_per_virtual_pipeline_stage", "pipeline_model_parallel_size")
        sheet.set("parallel.virtual_pipeline", None, *keys)
    elif per_chunk and layers:
        sheet.set(
            "parallel.virtual_pipeline", layers // stages // per_chunk, "num_layers_per_virtual_pipeline_stage",
            derived="num_layers / pipeline stages / layers of a virtual stage",
        )  # fmt: skip
    else:
        sheet.assume("parallel.virtual_pipeline", 1)


def _data(sheet: FileEntries) -> None:
    model, kind = sheet.value("tokenizer_model"), sheet.value("tokenizer_type")
    if sheet.has("tokenizer_model") or sheet.has("tokenizer_type") or sheet.has("vocab_file"):
        first = "tokenizer_model" if model is not None else "tokenizer_type" if kind is not None else "vocab_file"
        rest = [key for key in ("tokenizer_model", "tokenizer_type", "vocab_file") if key != first]
        keys = (first, *(key for key in rest if sheet.says(key)))
        sheet.set("data.tokenizer", model if model is not None else kind or sheet.value("vocab_file"), *keys)
    if sheet.says("mock_data") and not sheet.says("data_path") and sheet.is_on("mock_data"):
        sheet.set("data.dataset", "mock data", "mock_data")
    elif sheet.says("train_data_path") and not sheet.says("data_path"):
        sheet.set("data.dataset", sheet.value("train_data_path"), "train_data_path")
    if sheet.says("dataloader_type"):
        sheet.set("data.loader", sheet.value("dataloader_type"), "dataloader_type")


def _fusions(sheet: FileEntries) -> None:
    backend = str(sheet.value("attention_backend", "auto")).lower().rpartition(".")[2]
    is_local = sheet.value("transformer_impl", "transformer_engine") == "local"
    fused = sheet.is_on("use_flash_attn") or (not is_local and backend in ("auto", "flash", "fused"))
    _put(sheet, "fused.attention", fused, "use_flash_attn", "attention_backend", "transformer_impl")
    if sheet.said("model.position_embedding") == "rope":
        _put(sheet, "fused.rope", sheet.is_on("apply_rope_fusion", True), "apply_rope_fusion")
    _put(sheet, "fused.norm", not sheet.is_on("no_persist_layer_norm"), "no_persist_layer_norm")
    if sheet.said("model.activation") == "swiglu":
        _put(sheet, "fused.swiglu", sheet.is_on("bias_swiglu_fusion", True), "bias_swiglu_fusion")
