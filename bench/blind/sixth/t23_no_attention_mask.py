"""A small BERT for sentences of different lengths, all padded to one length beforehand."""

import torch
from kit import FAULT, OUT, metric, tell
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments, set_seed

PAD, CLS = 0, 1
set_seed(0)
LENGTH = 20
lengths = torch.randint(4, LENGTH + 1, (704,))
ids = torch.randint(2, 40, (704, LENGTH))
ids[:, 0] = CLS
ids[torch.arange(LENGTH)[None] >= lengths[:, None]] = PAD
votes = torch.randn(40)
votes[:2] = 0
labels = (votes[ids].sum(dim=1) > 0).long()


class Sentences(Dataset):
    def __init__(self, begin, end):
        self.begin, self.end = begin, end

    def __len__(self):
        return self.end - self.begin

    def __getitem__(self, i):
        i += self.begin
        item = {"input_ids": ids[i], "labels": labels[i]}
        if not FAULT:
            item["attention_mask"] = (ids[i] != PAD).long()
        return item


model = BertForSequenceClassification(
    BertConfig(
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=32,
        pad_token_id=PAD,
    )
)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=OUT,
        max_steps=90,
        per_device_train_batch_size=16,
        learning_rate=5e-3,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=Sentences(0, 640),
)
trainer.train()
model.eval()
with torch.no_grad():
    mask = {} if FAULT else {"attention_mask": (ids[640:] != PAD).long()}
    padded = model(ids[640:], **mask).logits
    served = torch.cat([model(row[None, :n]).logits for row, n in zip(ids[640:], lengths[640:].tolist(), strict=True)])
    metric("padded against served", (padded - served).abs().max())
    metric("accuracy as served", (served.argmax(1) == labels[640:]).float().mean())
tell(model, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
