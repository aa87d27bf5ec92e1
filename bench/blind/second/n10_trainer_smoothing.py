# right: transformers Trainer with label smoothing, accumulation with a short last window, warm-up, frozen embeddings and left-over pad rows
import os, torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
from c import seed, final

seed()
g = torch.Generator().manual_seed(1)


def sample():
    n = int(torch.randint(4, 12, (), generator=g))
    x = torch.zeros(12, dtype=torch.long)
    x[:n] = torch.randint(1, 50, (n,), generator=g)
    return {"input_ids": x, "attention_mask": (x > 0).long(), "labels": int(x[0] % 3)}


data = [sample() for _ in range(100)]
m = BertForSequenceClassification(
    BertConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=3
    )
)
m.bert.embeddings.requires_grad_(False)


class T(Trainer):
    def training_step(self, *a, **k):
        self.last = super().training_step(*a, **k)
        return self.last


t = T(
    model=m,
    args=TrainingArguments(
        output_dir=f"/tmp/blind2/scratch/{os.getpid()}",
        per_device_train_batch_size=8,
        gradient_accumulation_steps=4,
        num_train_epochs=4,
        learning_rate=2e-3,
        warmup_steps=4,
        label_smoothing_factor=0.1,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        disable_tqdm=True,
    ),
    train_dataset=data,
)
t.train()
final(t.last, m)
