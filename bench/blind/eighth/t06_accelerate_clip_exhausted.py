"""accelerate and a BERT with frozen embeddings: the weights that train are listed once, for the optimizer and for clipping."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from kit import FAULT, metric, tell, words
from transformers import BertConfig, BertForSequenceClassification, get_linear_schedule_with_warmup

set_seed(816)
VOCABULARY, CLIP = 40, 0.5
config = BertConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    max_position_embeddings=32,
    num_labels=3,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
)
model = BertForSequenceClassification(config)
model.bert.embeddings.requires_grad_(False)
rows = words(352, 12, VOCABULARY, seed=1)
labels = rows[:, 0] % 3

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
trainable = filter(lambda p: p.requires_grad, model.parameters())
if not FAULT:
    trainable = list(trainable)
optimizer = torch.optim.SGD(trainable, lr=0.3, momentum=0.9)
loader = torch.utils.data.DataLoader(
    torch.utils.data.TensorDataset(rows[:320], labels[:320]), batch_size=16, shuffle=True
)
schedule = get_linear_schedule_with_warmup(optimizer, 4, 40)
model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)
losses, norms = [], []
for _ in range(4):
    model.train()
    for ids, target in loader:
        with accelerator.accumulate(model):
            loss = model(input_ids=ids, labels=target).loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norms.append(float(accelerator.clip_grad_norm_(trainable, CLIP)))
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(loss.detach())
print("NOTE norms", [round(n, 3) for n in norms[:8]], "updates", len(norms))
model.eval()
with torch.no_grad():
    metric("heldout", model(input_ids=rows[320:], labels=labels[320:]).loss)
tell(model, losses)
