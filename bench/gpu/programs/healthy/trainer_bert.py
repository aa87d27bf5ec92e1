import tempfile

from common import *
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

m = BertForSequenceClassification(
    BertConfig(
        num_hidden_layers=3, hidden_size=128, num_attention_heads=4, intermediate_size=256, vocab_size=512, num_labels=3
    )
)
data = [
    {"input_ids": t, "attention_mask": torch.cat([torch.ones(40), torch.zeros(24)]).long(), "labels": int(t[0]) % 3}
    for t in tokens(400).cpu()
]
a = TrainingArguments(
    tempfile.mkdtemp(),
    fp16=True,
    max_steps=30,
    per_device_train_batch_size=8,
    logging_steps=5,
    report_to=[],
    save_strategy="no",
    gradient_checkpointing=True,
    disable_tqdm=True,
    eval_strategy="steps",
    eval_steps=10,
)
Trainer(m, a, train_dataset=data, eval_dataset=data[:16]).train()
done(m)
