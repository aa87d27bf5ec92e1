"""LoRA with a trained head; for a fast evaluation the adapter is merged into the weights, once an epoch."""

import torch
from kit import FAULT, metric, tell, words
from peft import LoraConfig, get_peft_model
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup, set_seed

set_seed(305)
VOCABULARY = 40
data = words(640, 12, VOCABULARY, seed=5)
labels = (data[:, 0] + data[:, 5]) % 3

base = BertForSequenceClassification(
    BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=16,
        num_labels=3,
        pad_token_id=0,
    )
)
model = get_peft_model(
    base,
    LoraConfig(
        task_type="SEQ_CLS",
        r=8,
        lora_alpha=16,
        lora_dropout=0.05,
        target_modules=["query", "value", "dense"],
        exclude_modules=r".*pooler.*",
    ),
)
dataset = torch.utils.data.TensorDataset(data[:512], labels[:512])
loader = torch.utils.data.DataLoader(dataset, batch_size=32, shuffle=True)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=6e-3)
schedule = get_linear_schedule_with_warmup(optimizer, 5, 64)
losses = []


@torch.no_grad()
def evaluate():
    model.eval()
    model.merge_adapter()
    out = model(input_ids=data[512:], labels=labels[512:])
    if not FAULT:
        model.unmerge_adapter()
    model.train()
    return out.loss


for epoch in range(4):
    model.train()
    for tokens, target in loader:
        loss = model(input_ids=tokens, labels=target).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.detach())
    metric(f"heldout_loss_{epoch}", evaluate())

adapters = [p for n, p in model.named_parameters() if "lora_B" in n]
print("CHECK grads of adapters at the last step:", sum(p.grad is not None for p in adapters), "of", len(adapters))
tell(model, losses)
