"""One Llama twice: as a launch script of Megatron-LM and as a MindFormers YAML, the published ones re-created."""

from __future__ import annotations

from pathlib import Path

MEGATRON = """\
#!/bin/bash
# Llama 2 7B on one node of eight
export CUDA_DEVICE_MAX_CONNECTIONS=1

GPUS_PER_NODE=8
NNODES=1
TP=2
DATA_PATH=${DATA_PATH:-/data/wikitext_text_document}

DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NNODES
)

GPT_MODEL_ARGS=(
    --num-layers 32
    --hidden-size 4096
    --ffn-hidden-size 11008
    --num-attention-heads 32
    --seq-length 4096
    --max-position-embeddings 4096
    --normalization RMSNorm
    --norm-epsilon 1e-6
    --position-embedding-type rope
    --rotary-base 10000
    --swiglu
    --disable-bias-linear
    --untie-embeddings-and-output-weights
    --attention-dropout 0.0
    --hidden-dropout 0.0
    --init-method-std 0.01
)

TRAINING_ARGS="
    --micro-batch-size 1 \\
    --global-batch-size 64 \\
    --train-iters 2000 \\
    --optimizer adam \\
    --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 \\
    --weight-decay 0.1 --clip-grad 1.0 \\
    --lr 1.0e-5 --min-lr 1.0e-6 \\
    --lr-decay-style cosine \\
    --lr-decay-iters 2000 --lr-warmup-fraction 0.01 \\
    --bf16 --seed 42
"

torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \\
    ${GPT_MODEL_ARGS[@]} $TRAINING_ARGS \\
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size 1 \\
    --sequence-parallel --use-flash-attn \\
    --vocab-size 32000 --data-path $DATA_PATH --split 99,1,0
"""

MINDFORMERS = """\
seed: 42
output_dir: './output'
run_mode: 'train'

# trainer config
trainer:
  type: CausalLanguageModelingTrainer
  model_name: 'llama2_7b'

# runner config
runner_config:
  epochs: 1
  batch_size: 1
  sink_mode: True
  sink_size: 1
  gradient_accumulation_steps: 16

# optimizer
optimizer:
  type: AdamW
  betas: [0.9, 0.95]
  eps: 1.e-8
  weight_decay: 0.1

# lr schedule
lr_schedule:
  type: CosineWithWarmUpLR
  learning_rate: 1.e-5
  lr_end: 1.e-6
  warmup_ratio: 0.01
  total_steps: 2000

# parallel context config
use_parallel: True
parallel:
  parallel_mode: 1
  gradients_mean: False
  enable_parallel_optimizer: False
  full_batch: True
parallel_config:
  data_parallel: 4
  model_parallel: 2
  pipeline_stage: 1
  use_seq_parallel: True
  micro_batch_num: 1
  vocab_emb_dp: True
micro_batch_interleave_num: 1

runner_wrapper:
  type: MFTrainOneStepCell
  scale_sense: 1.0
  use_clip_grad: True
  max_grad_norm: 1.0

context:
  mode: 0
  device_target: "Ascend"
  enable_graph_kernel: False

# model config
model:
  model_config:
    type: LlamaConfig
    batch_size: 1
    seq_length: 4096
    hidden_size: 4096
    num_layers: 32
    num_heads: 32
    vocab_size: 32000
    intermediate_size: 11008
    rms_norm_eps: 1.0e-6
    bos_token_id: 1
    eos_token_id: 2
    pad_token_id: 0
    ignore_token_id: -100
    compute_dtype: "bfloat16"
    layernorm_compute_type: "float32"
    softmax_compute_type: "float32"
    rotary_dtype: "float32"
    param_init_type: "float32"
    embedding_init_type: "bfloat16"
    use_flash_attention: True
    theta: 10000.0
  arch:
    type: LlamaForCausalLM
"""

# What is planted: the items that must differ and no others, the words of the YAML, what takes their place.
PLANTED: tuple[tuple[frozenset[str], str, str], ...] = tuple(
    (frozenset(items.split()), old, new)
    for items, old, new in (
        ("model.norm_eps", "rms_norm_eps: 1.0e-6", "rms_norm_eps: 1.0e-5"),
        ("optimizer.beta2", "betas: [0.9, 0.95]", "betas: [0.9, 0.999]"),
        ("optimizer.beta1", "betas: [0.9, 0.95]", "betas: [0.95, 0.95]"),
        ("optimizer.eps", "  eps: 1.e-8", "  eps: 1.e-6"),
        ("optimizer.weight_decay", "weight_decay: 0.1", "weight_decay: 0.01"),
        ("optimizer.type", "type: AdamW", "type: Adam"),
        ("optimizer.lr", "learning_rate: 1.e-5", "learning_rate: 2.e-5"),
        ("optimizer.min_lr", "lr_end: 1.e-6", "lr_end: 0"),
        ("optimizer.lr_schedule", "type: CosineWithWarmUpLR", "type: LinearWithWarmUpLR"),
        ("optimizer.warmup_fraction optimizer.warmup_steps", "warmup_ratio: 0.01", "warmup_ratio: 0.03"),
        ("optimizer.clip_grad", "max_grad_norm: 1.0", "max_grad_norm: 0.5"),
        ("batch.accumulation_steps batch.global_batch_size", "accumulation_steps: 16", "accumulation_steps: 8"),
        ("model.num_layers", "num_layers: 32", "num_layers: 30"),
        ("model.intermediate_size", "intermediate_size: 11008", "intermediate_size: 14336"),
        ("model.num_key_value_heads", "num_heads: 32", "num_heads: 32\n    n_kv_heads: 8"),
        ("model.seq_length", " seq_length: 4096", " seq_length: 2048"),
        ("model.rope_theta", "theta: 10000.0", "theta: 500000.0"),
        ("model.vocab_size model.padded_vocab_size", "vocab_size: 32000", "vocab_size: 32256"),
        ("model.qkv_bias", "theta: 10000.0", "theta: 10000.0\n    qkv_has_bias: True"),
        (
            "precision.compute_dtype precision.residual_dtype precision.head_dtype",
            'compute_dtype: "bfloat16"',
            'compute_dtype: "float16"',
        ),
        ("precision.embedding_dtype", 'embedding_init_type: "bfloat16"', ""),
        ("parallel.distributed_optimizer", "enable_parallel_optimizer: False", "enable_parallel_optimizer: True"),
    )
)

# What one side alone is worth a remark for: Megatron-LM does not say these things.
REMARKED = (
    ("precision.norm_dtype", 'layernorm_compute_type: "float32"', 'layernorm_compute_type: "bfloat16"'),
    ("precision.rotary_dtype", 'rotary_dtype: "float32"', 'rotary_dtype: "bfloat16"'),
    ("other.graph_fusion", "enable_graph_kernel: False", "enable_graph_kernel: True"),
    ("parallel.interleaved_copies", "micro_batch_interleave_num: 1", "micro_batch_interleave_num: 2"),
)


def write_pair(folder: Path, *planted: tuple[str, str]) -> tuple[Path, Path]:
    """The script and the YAML, in which the given texts take the place of others."""
    text = MINDFORMERS
    for old, new in planted:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    script, yaml = folder / "pretrain_llama2_7b.sh", folder / "pretrain_llama2_7b.yaml"
    script.write_text(MEGATRON, encoding="utf-8")
    yaml.write_text(text, encoding="utf-8")
    return script, yaml
