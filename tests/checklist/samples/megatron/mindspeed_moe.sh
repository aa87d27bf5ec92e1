#!/bin/bash
# Flags of MindSpeed-LLM beside Megatron-LM's, as its examples for a mixture of experts have them.
export HCCL_CONNECT_TIMEOUT=3600
export INF_NAN_MODE_FORCE_DISABLE=0
export CLOSE_MATMUL_K_SHIFT=1

MOE_ARGS="
    --num-experts 64 --moe-router-topk 6 --moe-ffn-hidden-size 1408 --n-shared-experts 2
    --first-k-dense-replace 1 --seq-aux --moe-aux-loss-coeff 0.001 --norm-topk-prob --router-gating-in-fp32
    --moe-permutation-async-comm --moe-tp-extend-ep
"
ROPE_ARGS="--rope-scaling-type yarn --rope-scaling-factor 40 --position-embedding-type rope"
GPT_ARGS="
    --num-layers 32 --noop-layers 30,31 --hidden-size 2048 --num-attention-heads 16 --ffn-hidden-size 10944
    --use-fused-rmsnorm --use-fused-swiglu --use-fused-rotary-pos-emb --swiglu --normalization RMSNorm
    --use-flash-attn --use-mcore-models --reuse-fp32-param --npu-deterministic --no-shared-storage
    --tokenizer-name-or-path ./tokenizer --tokenizer-type PretrainedFromHF --prompt-type deepseek3
    --seq-length 4096 --micro-batch-size 1 --global-batch-size 64 --lr 1e-5 --train-iters 2000 --bf16
    --context-parallel-algo ulysses_cp_algo --swap-attention
"

torchrun --nproc_per_node 8 pretrain_gpt.py $GPT_ARGS $MOE_ARGS $ROPE_ARGS --data-path ./data/text
