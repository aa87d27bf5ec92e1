"""A Llama on packed documents: position ids begin anew in each document, which is how transformers sees their bounds."""

import torch
from kit import FAULT, metric, tell, words
from transformers import LlamaConfig, LlamaForCausalLM, set_seed

set_seed(302)
VOCABULARY, ROW = 40, 32
g = torch.Generator().manual_seed(2)
documents = [
    row[: int(n)] for row, n in zip(words(900, 14, VOCABULARY, seed=2), torch.randint(5, 14, (900,), generator=g))
]


def pack(documents):
    rows, current = [], []
    for document in documents:
        if sum(map(len, current)) + len(document) > ROW:
            rows.append(current)
            current = []
        current.append(document)
    return rows


class Collator:
    """Pads packed rows; a row's filling counts as a document of its own, without labels."""

    def __call__(self, rows):
        batch = {"input_ids": [], "labels": [], "position_ids": []}
        for row in rows:
            filling = ROW - sum(map(len, row))
            batch["input_ids"].append(torch.cat([*row, torch.zeros(filling, dtype=torch.long)]))
            first_unseen = [torch.cat([torch.tensor([-100]), d[1:]]) for d in row]
            batch["labels"].append(torch.cat([*first_unseen, torch.full((filling,), -100)]))
            batch["position_ids"].append(torch.cat([*(torch.arange(len(d)) for d in row), torch.arange(filling)]))
        batch = {k: torch.stack(v) for k, v in batch.items()}
        if FAULT:
            batch["attention_mask"] = (batch["input_ids"] != 0).long()
        return batch


model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=ROW,
        pad_token_id=0,
        use_cache=False,
    )
)
rows = pack(documents)
loader = torch.utils.data.DataLoader(rows[:280], batch_size=14, shuffle=True, collate_fn=Collator())
optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
losses = []
model.train()
for epoch in range(3):
    for batch in loader:
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())

model.eval()
with torch.no_grad():
    two = torch.cat([documents[-1], documents[-2]])[None]
    n = len(documents[-1])
    batch = Collator()([[documents[-1], documents[-2]]])
    packed = model(**{k: v for k, v in batch.items() if k != "labels"}).logits[0, n : two.shape[1]]
    alone = model(input_ids=documents[-2][None]).logits[0]
    metric("leak_between_documents", (packed - alone).abs().max())
    held = [model(input_ids=d[None], labels=d[None]).loss for d in documents[-40:]]
    metric("heldout_loss", torch.stack(held).mean())
tell(model, losses)
