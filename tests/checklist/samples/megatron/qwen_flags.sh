#!/bin/bash
# flags alone, for another script to source
MODEL_ARGS=" \
    --num-layers 24 \
    --hidden-size 896 \
    --ffn-hidden-size 4864 \
    --num-attention-heads 14 \
    --group-query-attention --num-query-groups 2 \
    --add-qkv-bias --disable-bias-linear \
    --normalization RMSNorm --norm-epsilon 1e-6 \
    --swiglu --position-embedding-type rope --rotary-base 1000000 \
    --make-vocab-size-divisible-by 1 --vocab-size 151936 \
    --seq-length 4096 --max-position-embeddings 32768 \
    --bf16 \
"
