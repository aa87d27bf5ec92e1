# RANKS 2
# Transformers Trainer on two ranks, causal LM with labels -100, accumulation, num_items_in_batch averaged across devices
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from c import seed, final, FOLDER

seed()
g = torch.Generator().manual_seed(1)


def one():
    n = int(torch.randint(4, 16, (), generator=g))
    x = torch.randint(1, 60, (16,), generator=g)
    a = (torch.arange(16) < n).long()
    return {"input_ids": x, "attention_mask": a, "labels": torch.where(a.bool(), x, -100)}


data = [one() for _ in range(128)]
m = GPT2LMHeadModel(GPT2Config(vocab_size=60, n_positions=16, n_embd=32, n_layer=2, n_head=2))
t = Trainer(
    model=m,
    args=TrainingArguments(
        output_dir=FOLDER,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        max_steps=30,
        learning_rate=2e-3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=5,
        disable_tqdm=True,
        average_tokens_across_devices=True,
        ddp_find_unused_parameters=False,
    ),
    train_dataset=data,
)
out = t.train()
final(out.training_loss, m)
