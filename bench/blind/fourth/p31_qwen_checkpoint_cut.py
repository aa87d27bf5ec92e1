"""Qwen2-MoE, Trainer: frozen embeddings with reentrant checkpointing, so no layer below the head gets a gradient."""

from kit import FAULT, arguments, sentences, told
from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM, Trainer, set_seed

set_seed(31)
config = Qwen2MoeConfig(
    vocab_size=64,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    num_experts=4,
    num_experts_per_tok=2,
    moe_intermediate_size=32,
    shared_expert_intermediate_size=32,
)
model = Qwen2MoeForCausalLM(config)
model.get_input_embeddings().requires_grad_(False)
rows = [{"input_ids": s[:12], "labels": s[:12]} for s in sentences(300, 12, 14, 64)]
trainer = Trainer(
    model=model,
    args=arguments(
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": bool(FAULT)},
    ),
    train_dataset=rows,
)
trainer.train()
told(trainer)
