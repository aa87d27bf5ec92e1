"""Keys of a MindFormers YAML that say something only together.

Looked up in MindFormers 1.6: trainer/base_trainer.py (batches), wrapper/wrapper.py (clipping, loss scale),
models/llama/llama_config.py and the other configuration classes.
"""

from __future__ import annotations

from typing import Any

from hypocenter.checklist.checklist import Entry, Given, Value
from hypocenter.checklist.file_entries import FileEntries, framework
from hypocenter.checklist.tables import read_toml, table
from hypocenter.checklist.words import boolean, canonical, dtype, gated, number, whole

_MODEL = "model.model_config."
_PARALLEL = ("data_parallel", "model_parallel", "pipeline_stage", "context_parallel", "expert_parallel")


@framework("mindformers")
def settle(sheet: FileEntries) -> None:
    """Everything that more than one key says, and the defaults of the model's configuration class."""
    kind = str(sheet.value(f"{_MODEL}type") or sheet.value(f"{_MODEL}model_type") or "")
    _model(sheet, kind)
    _optimizer(sheet)
    _schedule(sheet)
    _wrapper(sheet)
    _batch(sheet)
    _parallel(sheet)
    _experts(sheet)
    _rest(sheet)
    _defaults(sheet, kind)


def _defaults(sheet: FileEntries, kind: str) -> None:
    """Settle the class's defaults in the same way as what is said; what is new then is assumed."""
    known: Any = read_toml("mindformers_models").get(kind)
    if known is None:
        if kind:
            sheet.note(f"defaults of the model {kind!r} are not known here")
        return
    names = table("mindformers")
    said = {
        names.item_of(key)[0] or key for key in sheet.present() if sheet.value(key) is not None or sheet.is_lost(key)
    }
    added = [
        Entry(key=f"{_MODEL}{key}", value=value, spelled="")
        for key, value in known["defaults"].items()
        if (names.item_of(f"{_MODEL}{key}")[0] or f"{_MODEL}{key}") not in said
    ]
    own = [entry for entry in sheet.given.entries if entry.key.startswith(_MODEL) and entry.value is not None]
    both = FileEntries(Given(kind="", table="mindformers", entries=(*added, *own)), names)
    both.start()
    _model(both, kind)
    for item, setting in both.close().settings.items():
        sheet.assume(item, setting.value, setting.derived)
    for item, value in known["facts"].items():
        sheet.assume(item, value)


def _model(sheet: FileEntries, kind: str) -> None:
    if kind:
        sheet.set("model.architecture", kind.removesuffix("Config").lower(), f"{_MODEL}type", f"{_MODEL}model_type")
    _formats(sheet)
    _activation(sheet, kind)
    _sizes(sheet)
    _positions(sheet)
    if sheet.says(f"{_MODEL}rmsnorm"):
        is_rms = sheet.is_on(f"{_MODEL}rmsnorm")
        sheet.set("model.norm_type", "rmsnorm" if is_rms else "layernorm", f"{_MODEL}rmsnorm")
    if sheet.says(f"{_MODEL}post_layernorm_residual"):
        is_post = sheet.is_on(f"{_MODEL}post_layernorm_residual")
        sheet.set(
            "model.norm_position", "residual-after-norm" if is_post else "pre", f"{_MODEL}post_layernorm_residual"
        )
    _biases(sheet)
    if sheet.says(f"{_MODEL}use_sliding_window") and not sheet.is_on(f"{_MODEL}use_sliding_window"):
        sheet.set("model.sliding_window", None, f"{_MODEL}use_sliding_window", f"{_MODEL}sliding_window")


def _formats(sheet: FileEntries) -> None:
    compute_key = f"{_MODEL}compute_dtype"
    if sheet.says(compute_key):
        value, why = sheet.value(compute_key), "the head computes in compute_dtype"
        sheet.set("precision.head_dtype", value, compute_key, derived=why)
    key = next((f"{_MODEL}{name}" for name in ("param_init_type", "param_init_dtype", "params_dtype")
                if sheet.says(f"{_MODEL}{name}")), None)  # fmt: skip
    if key is None:
        return
    found = dtype(sheet.value(key))
    sheet.set("weights.init_dtype", found, key)
    sheet.set("precision.params_dtype", found, key)
    why = "MindFormers reduces gradients in the format of the parameters"
    sheet.set("precision.grad_reduce_dtype", found, key, derived=why)
    embedding = f"{_MODEL}embedding_init_type"
    why = None if sheet.says(embedding) else "the format of the parameters"
    value = dtype(sheet.value(embedding, found))
    sheet.set("precision.embedding_dtype", value, embedding if why is None else key, derived=why)
    if not sheet.says(f"{_MODEL}residual_dtype") and sheet.says(f"{_MODEL}compute_dtype"):
        compute = dtype(sheet.value(f"{_MODEL}compute_dtype"))
        in_full = sheet.is_on(f"{_MODEL}fp32_residual_connection")
        if in_full:
            sheet.set("precision.residual_dtype", "float32", f"{_MODEL}fp32_residual_connection")
        else:
            sheet.set("precision.residual_dtype", compute, f"{_MODEL}compute_dtype", derived="compute_dtype")


def _activation(sheet: FileEntries, kind: str) -> None:
    key = next((f"{_MODEL}{name}" for name in ("hidden_act", "activation_func") if sheet.says(f"{_MODEL}{name}")), None)
    if key is None:
        return
    word = canonical("model.activation", sheet.value(key))
    if word == "silu" and (
        kind.lower().startswith(("llama", "qwen", "deepseek")) or sheet.is_on(f"{_MODEL}gated_linear_unit")
    ):
        sheet.set("model.activation", gated(word), key, derived="within a gated unit")
    elif word == "gelu":
        sheet.set("model.activation", "gelu_tanh", key, derived="MindSpore computes GELU by its tanh approximation")
    else:
        sheet.set("model.activation", word, key)


def _sizes(sheet: FileEntries) -> None:
    hidden = sheet.number(f"{_MODEL}hidden_size")
    if not sheet.says(f"{_MODEL}intermediate_size") and not sheet.says(f"{_MODEL}ffn_hidden_size") and hidden:
        multiple, factor = sheet.number(f"{_MODEL}multiple_of"), sheet.number(f"{_MODEL}ffn_dim_multiplier")
        ratio = sheet.number(f"{_MODEL}expand_ratio")
        if ratio:
            keys = (f"{_MODEL}hidden_size", f"{_MODEL}expand_ratio")
            sheet.set("model.intermediate_size", ratio * hidden, *keys, derived="expand_ratio * hidden_size")
        elif multiple:
            size = int((factor or 1) * int(8 * hidden / 3))
            why = f"8/3 of hidden_size, up to a multiple of {multiple}"
            keys = tuple(f"{_MODEL}{name}" for name in ("hidden_size", "multiple_of", "ffn_dim_multiplier"))
            sheet.set("model.intermediate_size", -(-size // multiple) * multiple, *keys, derived=why)
    heads = [
        f"{_MODEL}{name}" for name in ("n_kv_heads", "num_key_value_heads", "num_query_groups", "multi_query_group_num")
    ]
    own = [f"{_MODEL}{name}" for name in ("num_heads", "num_attention_heads")]
    n = next((sheet.number(key) for key in own if sheet.says(key)), None)
    if not sheet.says(*heads) and n:
        sheet.set("model.num_key_value_heads", n, *own, derived="num_heads")
    if not sheet.says(f"{_MODEL}max_position_embedding", f"{_MODEL}max_position_embeddings"):
        size = sheet.value(f"{_MODEL}seq_length")
        if size is not None:
            sheet.set("model.max_position_embeddings", size, f"{_MODEL}seq_length", derived="seq_length")


def _positions(sheet: FileEntries) -> None:
    names = ("extend_method", "scaling_factor", "rope_scaling")
    keys = [key for key in sheet.present() if key.startswith(tuple(f"{_MODEL}{name}" for name in names))]
    if not keys:
        return
    method = str(sheet.value(f"{_MODEL}extend_method", "None")).lower()
    kind = next((sheet.value(key) for key in keys if key.endswith((".rope_type", ".type"))), None)
    factor = next((whole(sheet.value(key)) for key in keys if key.endswith((".factor", "scaling_factor"))), None)
    if method in ("none", "") and kind in (None, "default"):
        sheet.set("model.rope_scaling", "none", *keys)
    else:
        word = {"pi": "linear", "ntk": "ntk"}.get(method, method) if kind is None else kind
        sheet.set("model.rope_scaling", f"{word}:{factor}" if factor is not None else str(word), *keys)


def _biases(sheet: FileEntries) -> None:
    both = ("model.qkv_bias", "model.attention_output_bias")
    for name, items in (
        ("add_bias_linear", (*both, "model.mlp_bias")),
        ("attention_bias", both),
        ("mlp_bias", ("model.mlp_bias",)),
    ):
        key = f"{_MODEL}{name}"
        if sheet.says(key):
            for item in items:
                if not (item == "model.qkv_bias" and sheet.says(f"{_MODEL}add_qkv_bias", f"{_MODEL}qkv_has_bias")):
                    sheet.set(item, sheet.value(key), key)


def _optimizer(sheet: FileEntries) -> None:
    betas = sheet.value("optimizer.betas")
    if isinstance(betas, tuple) and len(betas) == 2:
        sheet.set("optimizer.beta1", betas[0], "optimizer.betas")
        sheet.set("optimizer.beta2", betas[1], "optimizer.betas")
    elif sheet.is_lost("optimizer.betas"):
        sheet.set("optimizer.beta2", None, "optimizer.betas")
    if str(sheet.value("optimizer.type", "")).lower() in ("fp32stateadamweightdecay", "fusedadamweightdecay"):
        sheet.assume("optimizer.eps", 1e-6)
    if sheet.says("optimizer.learning_rate") and not sheet.says("lr_schedule.learning_rate"):
        sheet.set("optimizer.lr", sheet.value("optimizer.learning_rate"), "optimizer.learning_rate")
        if not sheet.says("lr_schedule.type"):
            sheet.assume("optimizer.lr_schedule", "constant", "no lr_schedule is given")


def _schedule(sheet: FileEntries) -> None:
    total = sheet.number("lr_schedule.total_steps")
    if total is not None and total > 0:
        sheet.set("optimizer.total_steps", total, "lr_schedule.total_steps")
        if not sheet.says("lr_schedule.decay_steps"):
            sheet.assume("optimizer.decay_steps", total, "total_steps")
    if sheet.says("lr_schedule.decay_steps"):
        sheet.set("optimizer.decay_steps", sheet.value("lr_schedule.decay_steps"), "lr_schedule.decay_steps")
    ratio, steps = sheet.number("lr_schedule.warmup_ratio"), sheet.number("lr_schedule.warmup_steps")
    if ratio:
        sheet.set("optimizer.warmup_fraction", ratio, "lr_schedule.warmup_ratio")
        sheet.forget("optimizer.warmup_steps")
        if total and total > 0:
            why = "warmup_ratio * total_steps, rounded down"
            keys = ("lr_schedule.warmup_ratio", "lr_schedule.total_steps")
            sheet.set("optimizer.warmup_steps", int(ratio * total), *keys, derived=why)
    elif ratio == 0 or steps is not None:
        sheet.set("optimizer.warmup_steps", steps or 0, "lr_schedule.warmup_steps", "lr_schedule.warmup_ratio")
    elif sheet.has("lr_schedule.warmup_epochs"):
        sheet.forget("optimizer.warmup_steps")


def _wrapper(sheet: FileEntries) -> None:
    use, most = "runner_wrapper.use_clip_grad", "runner_wrapper.max_grad_norm"
    if sheet.says(use):
        sheet.set("optimizer.clip_grad", sheet.value(most, 1.0) if sheet.is_on(use) else 0.0, use, most)
    elif str(sheet.value("runner_wrapper.type", "")) == "MFPipelineWithLossScaleCell":
        sheet.assume("optimizer.clip_grad", 1.0)
    scale = "runner_wrapper.scale_sense"
    keys = tuple(key for key in sheet.present() if key.startswith(scale))
    kind = str(sheet.value(f"{scale}.type", ""))
    if kind:
        value: Value = "dynamic" if "dynamic" in kind.lower() or "adaptive" in kind.lower() else None
        sheet.set("precision.loss_scale", value or number(sheet.value(f"{scale}.loss_scale_value", "fixed")), *keys)
    elif sheet.says(scale):
        value = number(sheet.value(scale))
        sheet.set("precision.loss_scale", "none" if value == 1 else value, scale)


def _batch(sheet: FileEntries) -> None:
    """Set batch sizes: a step has batch_size * data_parallel * copies * micro-batches, as base_trainer.py counts."""
    key = "runner_config.batch_size" if sheet.says("runner_config.batch_size") else "train_dataset.batch_size"
    if sheet.says(key):
        keys = (key,) if key.startswith("train") else (key, "train_dataset.batch_size")
        sheet.set("batch.micro_batch_size", sheet.value(key), *keys)
    stages = sheet.number("parallel_config.pipeline_stage") or 1
    copies_key = next((key for key in ("micro_batch_interleave_num", "parallel_config.micro_batch_interleave_num")
                       if sheet.says(key)), None)  # fmt: skip
    copies: Any = sheet.number(copies_key) if copies_key else 1
    if copies_key:
        sheet.set("parallel.interleaved_copies", copies, copies_key)
    is_parallel = sheet.is_on("use_parallel", True)
    key = (
        "parallel_config.micro_batch_num" if stages > 1 and is_parallel else "runner_config.gradient_accumulation_steps"
    )
    n = sheet.number(key) or 1
    why = "micro-batches of a pipeline" if key.endswith("num") else None
    if sheet.says(key) or copies_key:
        why = f"{why or 'gradient_accumulation_steps'} * interleaved copies" if (copies or 1) > 1 else why
        keys = (key, copies_key) if copies_key and (copies or 1) > 1 else (key,)
        if sheet.says(key) or (copies or 1) > 1:
            sheet.set("batch.accumulation_steps", n * (copies or 1), *keys, derived=why)


def _parallel(sheet: FileEntries) -> None:
    if sheet.value("use_parallel") is not None and not sheet.is_on("use_parallel"):
        for name, item in zip(_PARALLEL, ("data", "tensor", "pipeline", "context", "expert"), strict=True):
            key = f"parallel_config.{name}"
            if sheet.says(key):
                sheet.set(f"parallel.{item}", 1, key, "use_parallel", derived="use_parallel is off")
    key = "parallel.enable_parallel_optimizer"
    if sheet.says(key):
        on = sheet.is_on(key)
        sheet.set("parallel.distributed_optimizer", on, key)
        sheet.set("parallel.zero_stage", 1 if on else 0, key, derived="how much of the optimizer is spread")
    key, some = "recompute_config.recompute", "recompute_config.select_recompute"
    is_full = sheet.is_on(key) or isinstance(sheet.value(key), tuple)
    if sheet.says(key, some):
        found = "full" if is_full else "selective" if sheet.is_on(some) else "none"
        sheet.set("parallel.recompute", found, key, some)


def _experts(sheet: FileEntries) -> None:
    factor = sheet.number("moe_config.capacity_factor")
    if factor is not None:
        why = "no token is dropped" if factor <= 0 else None
        sheet.set("moe.capacity_factor", None if factor <= 0 else factor, "moe_config.capacity_factor", derived=why)
    if sheet.says("moe_config.enable_sdrop"):
        on = sheet.is_on("moe_config.enable_sdrop")
        sheet.set("moe.token_drop_policy", "position" if on else "probs", "moe_config.enable_sdrop")
    keys = ("moe_config.use_fused_ops_topkrouter", "moe_config.use_fused_ops_permute")
    if sheet.says(*keys):
        sheet.set("moe.fused_permute", any(sheet.is_on(key) for key in keys), *keys)
    if sheet.says("moe_config.use_gating_sigmoid"):
        on = sheet.is_on("moe_config.use_gating_sigmoid")
        sheet.set("moe.router_score", "sigmoid" if on else "softmax", "moe_config.use_gating_sigmoid")
    n, size = sheet.number("moe_config.shared_expert_num"), sheet.number("moe_config.moe_intermediate_size")
    if n is not None:
        why = "shared_expert_num * moe_intermediate_size"
        keys = ("moe_config.shared_expert_num", "moe_config.moe_intermediate_size")
        known = n == 0 or size is not None
        if known:
            sheet.set("moe.shared_expert_size", n * (size or 0) or None, *keys, derived=why)
    if (sheet.number("moe_config.expert_num") or 1) > 1 and size is None and sheet.says(f"{_MODEL}intermediate_size"):
        key = f"{_MODEL}intermediate_size"
        sheet.set("moe.expert_intermediate_size", sheet.value(key), key, derived="intermediate_size")


def _rest(sheet: FileEntries) -> None:
    key = "train_dataset.seed" if sheet.says("train_dataset.seed") else "seed"
    if sheet.says(key) and not sheet.says("train_dataset.data_loader.config.seed"):
        sheet.set("data.seed", number(sheet.value(key)), key)
    for key in ("context.deterministic", "train_precision_sync"):
        if sheet.says(key):
            sheet.set("other.deterministic", boolean(sheet.value(key)) is True, key)
    places = ("processor.tokenizer.", "train_dataset.tokenizer.")
    keys = [f"{place}{name}" for name in ("vocab_file", "tokenizer_file", "type") for place in places]
    key = next((key for key in keys if sheet.value(key)), None)
    if key:
        sheet.set("data.tokenizer", sheet.value(key), key, *keys)
