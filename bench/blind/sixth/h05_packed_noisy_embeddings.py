"""Right: the Trainer with NEFTune noise, answers only in the loss, rates by depth, cosine with restarts, accumulation."""

import torch
from kit import OUT, metric, tell, words
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

set_seed(0)
data = words(320, 16, 40)
rows = []
for i, row in enumerate(data):
    labels = row.clone()
    labels[: 2 + i % 7] = -100
    rows.append({"input_ids": row, "labels": labels})
model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=40,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        tie_word_embeddings=True,
        pad_token_id=0,
    )
)
groups = [
    {"params": model.model.embed_tokens.parameters(), "lr": 8e-3, "weight_decay": 0.0},
    *({"params": layer.parameters(), "lr": 1.5e-2 * 0.8 ** (1 - k)} for k, layer in enumerate(model.model.layers)),
    {"params": model.model.norm.parameters(), "lr": 1.5e-2, "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95))
schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 10, T_mult=2)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=OUT,
        max_steps=50,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=3,
        logging_steps=1,
        neftune_noise_alpha=0.5,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        max_grad_norm=0.5,
    ),
    train_dataset=rows,
    optimizers=(optimizer, schedule),
)
trainer.train()
model.eval()
with torch.no_grad():
    metric("next word", (model(data[:64]).logits[:, 8:-1].argmax(-1) == data[:64, 9:]).float().mean())
tell(model, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
