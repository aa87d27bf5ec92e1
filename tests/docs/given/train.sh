#!/bin/bash
torchrun --nproc-per-node 8 pretrain_gpt.py \
    --num-layers 4 --hidden-size 64 --num-attention-heads 4 --seq-length 32 --max-position-embeddings 32 \
    --micro-batch-size 2 --global-batch-size 16 --lr 3e-4 --norm-epsilon 1e-6 --adam-beta2 0.95 --bf16
