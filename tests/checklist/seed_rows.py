"""Every row of the seeds' tables with values that are the same, that differ, and that mean the same in other words."""

from __future__ import annotations

from dataclasses import dataclass

from made_sides import Said

from hypocenter.checklist.checklist import Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A row and an item that answers it: `one` is not `other`; `alike` mean the same, None where nothing else can."""

    row: str
    item: str
    one: Value
    other: Value
    alike: tuple[Said, Said] | None = None


FUSED = ("fused.rope", "fused.norm", "fused.swiglu", "model.fused_qkv")
FP32 = (Said(value="float32"), Said(value="fp32"))
BF16 = (Said(value="bfloat16"), Said(value="torch.bfloat16"))
OFF = (Said(value=False), Said(value=None))
ONE = (Said(value=1), Said(value=None))

CASES: tuple[Case, ...] = (
    Case(row="structure/num_layers", item="model.num_layers", one=24, other=32),
    Case(row="structure/num_heads", item="model.num_attention_heads", one=16, other=32),
    Case(row="structure/hidden_size", item="model.hidden_size", one=2048, other=4096),
    Case(
        row="structure/intermediate_size", item="model.intermediate_size", one=11008, other=16384,
        alike=(Said(value=11008), Said(value=11008, setting={"spelled": "", "derived": "2/3 of 4 × hidden_size"})),
    ),
    Case(
        row="structure/n_kv_heads", item="model.num_key_value_heads", one=8, other=32,
        alike=(Said(value=32), Said(is_silent=True, other={"model.num_attention_heads": 32})),
    ),
    Case(
        row="structure/normalisation function", item="model.norm_type", one="rmsnorm", other="layernorm",
        alike=(Said(value="RMSNorm"), Said(value="rms_norm")),
    ),
    Case(row="structure/rms_norm_eps", item="model.norm_eps", one=1e-5, other=1e-6),
    *(
        Case(row="structure/dropout", item=item, one=0.0, other=0.1, alike=(Said(value=0.0), Said(value=None)))
        for item in ("model.attention_dropout", "model.hidden_dropout", "model.embedding_dropout")
    ),
    Case(
        row="structure/fused computation", item="fused.attention", one=True, other=False,
        alike=(Said(value="flash"), Said(value="flash_attention_2")),
    ),
    *(
        Case(row="structure/fused computation", item=item, one=True, other=False, alike=OFF)
        for item in ("fused.rope", "fused.norm", "fused.swiglu", "model.fused_qkv")
    ),
    Case(row="moe/expert_num", item="moe.num_experts", one=8, other=16, alike=(Said(value=1), Said(value=0))),
    Case(row="moe/num_experts_chosen", item="moe.top_k", one=2, other=1),
    Case(
        row="moe/capacity_factor", item="moe.capacity_factor", one=1.5, other=1.1,
        alike=(Said(value=None), Said(value=-1.0)),
    ),
    Case(
        row="moe/aux_loss_factor", item="moe.aux_loss_coeff", one=0.01, other=0.05,
        alike=(Said(value=0.0), Said(value="none")),
    ),
    Case(
        row="moe/enable_sdrop", item="moe.token_drop_policy", one="position", other="probs",
        alike=(Said(value="position", kind="megatron-shell"), Said(value=True, kind="mindformers-yaml")),
    ),
    Case(row="moe/router_dense_type", item="moe.router_dtype", one="float32", other="bfloat16", alike=FP32),
    Case(row="moe/use_fused_ops_topkrouter", item="moe.fused_permute", one=True, other=False, alike=OFF),
    Case(row="moe/use_shared_expert_gating", item="moe.shared_expert_gate", one=True, other=False, alike=OFF),
    Case(
        row="optimizer/adam", item="optimizer.type", one="adamw", other="adam",
        alike=(
            Said(value="adam", kind="megatron-shell"),
            Said(value="AdamW", kind="mindformers-yaml"),
        ),
    ),
    Case(
        row="optimizer/adam", item="optimizer.type", one="adamw", other="sgd",
        alike=(
            Said(value="adam", other={"optimizer.weight_decay": 0.0}),
            Said(value="adamw", other={"optimizer.weight_decay": 0}),
        ),
    ),
    Case(row="optimizer/eps", item="optimizer.eps", one=1e-8, other=1e-6),
    Case(row="optimizer/beta1", item="optimizer.beta1", one=0.9, other=0.95),
    Case(row="optimizer/beta2", item="optimizer.beta2", one=0.95, other=0.999),
    Case(
        row="optimizer/weight_decay", item="optimizer.weight_decay", one=0.1, other=0.01,
        alike=(Said(value=0.0), Said(value=None)),
    ),
    Case(row="optimizer/weight_decay", item="optimizer.decay_bias_and_norm", one=False, other=True, alike=OFF),
    Case(row="optimizer/lr", item="optimizer.lr", one=1e-5, other=3e-4),
    Case(
        row="optimizer/lr_warmup_fraction", item="optimizer.warmup_fraction", one=0.01, other=0.03,
        alike=(
            Said(value=0.01),
            Said(is_silent=True, other={"optimizer.warmup_steps": 20, "optimizer.total_steps": 2000}),
        ),
    ),
    Case(
        row="optimizer/clip_grad", item="optimizer.clip_grad", one=1.0, other=0.5,
        alike=(Said(value=0.0), Said(value="none")),
    ),
    Case(
        row="optimizer/global_batch_size", item="batch.global_batch_size", one=512, other=256,
        alike=(Said(value=512), Said(value=512, setting={"derived": "micro_batch_size * data * accumulation_steps"})),
    ),
    Case(
        row="weights/param_init_type", item="weights.init_dtype", one="float32", other="bfloat16",
        alike=(Said(value="bfloat16", kind="megatron-shell"), Said(value="float32", kind="mindformers-yaml")),
    ),
    Case(
        row="weights/param_init_type", item="precision.grad_reduce_dtype", one="float32", other="bfloat16",
        alike=FP32,
    ),
    Case(row="weights/init_method_std", item="weights.init_std", one=0.02, other=0.006),
    Case(row="precision/compute_dtype", item="precision.compute_dtype", one="bfloat16", other="float16", alike=BF16),
    Case(
        row="precision/layernorm_compute_type", item="precision.norm_dtype", one="float32", other="bfloat16",
        alike=FP32,
    ),
    Case(
        row="precision/softmax_compute_type", item="precision.softmax_dtype", one="float32", other="float16",
        alike=(
            Said(value="float32", other={"fused.attention": True}),
            Said(value="bfloat16", other={"fused.attention": True}),
        ),
    ),
    Case(row="precision/rotary_dtype", item="precision.rotary_dtype", one="float32", other="bfloat16", alike=FP32),
    Case(
        row="precision/weights in computation", item="precision.embedding_dtype", one="bfloat16", other="float32",
        alike=BF16,
    ),
    Case(
        row="precision/weights in computation", item="precision.head_dtype", one="bfloat16", other="float32",
        alike=BF16,
    ),
    Case(row="precision/bias add", item="precision.bias_add_dtype", one="bfloat16", other="float32", alike=BF16),
    Case(row="precision/residual add", item="precision.residual_dtype", one="bfloat16", other="float32", alike=BF16),
    Case(row="precision/loss", item="precision.loss_dtype", one="float32", other="bfloat16", alike=FP32),
    Case(
        row="precision/high-precision operators", item="precision.high_precision_ops", one="high_precision",
        other="high_performance", alike=(Said(value="high_precision"), Said(value="true")),
    ),
    *(
        Case(row=row, item=item, one=1, other=8, alike=ONE)
        for row, item in (
            ("parallel/data_parallel", "parallel.data"),
            ("parallel/model_parallel", "parallel.tensor"),
            ("parallel/pipeline_stage", "parallel.pipeline"),
            ("parallel/micro_batch_interleave_num", "parallel.interleaved_copies"),
        )
    ),
    Case(
        row="parallel/use_seq_parallel", item="parallel.sequence_parallel", one=True, other=False,
        alike=(Said(value=True, other={"parallel.tensor": 1}), Said(value=False, other={"parallel.tensor": 1})),
    ),
    Case(
        row="parallel/enable_parallel_optimizer", item="parallel.distributed_optimizer", one=True, other=False,
        alike=(Said(value=True), Said(is_silent=True, other={"parallel.zero_stage": 1})),
    ),
    Case(row="other/special tokens", item="data.bos_token_id", one=1, other=128000),
    Case(row="other/special tokens", item="data.eos_token_id", one=2, other=(2, 32001)),
    Case(
        row="other/special tokens", item="data.pad_token_id", one=0, other=2, alike=(Said(value=-1), Said(value=None))
    ),
    Case(
        row="other/overflow mode", item="other.overflow_mode", one="INFNAN_MODE", other="SATURATION_MODE",
        alike=(Said(value="INFNAN_MODE"), Said(value="1")),
    ),
    Case(row="other/graph fusion", item="other.graph_fusion", one=False, other=True, alike=OFF),
    Case(
        row="other/same template in training and inference", item="data.template", one="<s>[INST] {} [/INST]",
        other="{}\n### Answer:",
    ),
    *(
        Case(row="other/versions", item=f"other.versions.{name}", one="2.6.0", other="2.5.1")
        for name in ("torch", "mindspore", "mindformers", "cann", "megatron", "transformers")
    ),
    Case(
        row="other/differences from the published model", item="model.architecture", one="LlamaForCausalLM",
        other="OurLlamaForCausalLM",
    ),
    Case(row="alignment/num_layers", item="model.num_layers", one=2, other=24),
    Case(
        row="alignment/learning_rate_type", item="optimizer.lr_schedule", one="constant", other="cosine",
        alike=(Said(value="constant"), Said(value="ConstantWarmUpLR")),
    ),
    Case(
        row="alignment/warmup_steps", item="optimizer.warmup_steps", one=0, other=2000,
        alike=(Said(value=0), Said(value=None)),
    ),
    Case(row="alignment/adam_eps", item="optimizer.eps", one=1e-8, other=1e-5),
    Case(
        row="alignment/dropout", item="model.attention_dropout", one=0, other=0.1,
        alike=(Said(value=0), Said(value=False)),
    ),
)  # fmt: skip

MEASURED = ("other/data", "other/input_ids")  # rows about real batches, which no configuration says
