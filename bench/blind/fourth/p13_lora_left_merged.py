"""PEFT LoRA for classification: an evaluation at step 10 merges the adapter for speed and never unmerges it."""

import torch
from kit import FAULT, sentences, tell
from peft import LoraConfig, TaskType, get_peft_model
from transformers import LlamaConfig, LlamaForSequenceClassification, set_seed

set_seed(13)
config = LlamaConfig(
    vocab_size=60,
    hidden_size=48,
    intermediate_size=96,
    num_hidden_layers=2,
    num_attention_heads=4,
    pad_token_id=0,
    num_labels=4,
)
model = get_peft_model(
    LlamaForSequenceClassification(config),
    LoraConfig(task_type=TaskType.SEQ_CLS, r=4, target_modules=["q_proj", "v_proj", "down_proj"]),
)
data = torch.tensor([s[:10] for s in sentences(400, 10, 12, 60)])
target = (data[:, 3] + data[:, 5]) % 4
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)


def evaluate():
    model.eval()
    if FAULT:
        model.merge_adapter()
    with torch.no_grad():
        right = model(input_ids=data[:64]).logits.argmax(-1) == target[:64]
    model.train()
    return right.float().mean().item()


losses = []
for step in range(40):
    rows = torch.randint(0, 400, (16,))
    loss = model(input_ids=data[rows], labels=target[rows]).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.detach())
    if step == 9:
        print("right", evaluate())
tell(model, losses)
