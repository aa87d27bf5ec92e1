#!/bin/bash
# What gpt_torch.py trains, as Megatron-LM would be told.
MODEL="--num-layers 2 --hidden-size 32 --ffn-hidden-size 128 --num-attention-heads 4 --seq-length 32 \
    --max-position-embeddings 32 --position-embedding-type learned_absolute --normalization LayerNorm \
    --norm-epsilon 1e-5 --untie-embeddings-and-output-weights --attention-dropout 0 --hidden-dropout 0 \
    --make-vocab-size-divisible-by 1 --vocab-size 256"
TRAIN="--micro-batch-size 8 --global-batch-size 8 --train-iters 65 --optimizer adam --lr 1e-3 --min-lr 1e-4 \
    --lr-decay-style cosine --lr-warmup-iters 5 --lr-decay-iters 65 --adam-beta1 0.9 --adam-beta2 0.95 --adam-eps 1e-8 \
    --weight-decay 0.1 --clip-grad 1.0"
torchrun --nproc-per-node 1 pretrain_gpt.py $MODEL $TRAIN
