# transformers Trainer: compute_loss of the user returns a mean and leaves num_items_in_batch unused
import os, torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from c import FAULT, seed, final

seed()
g = torch.Generator().manual_seed(1)
data = [
    {"input_ids": x, "labels": x} for x in (torch.randint(0, 64, (128, 1), generator=g) + torch.arange(16) * 3) % 64
]
model = GPT2LMHeadModel(
    GPT2Config(vocab_size=64, n_positions=32, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0)
)


class T(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(input_ids=inputs["input_ids"])
        logits, y = out.logits[:, :-1], inputs["labels"][:, 1:]
        loss = torch.nn.functional.cross_entropy(
            logits.reshape(-1, 64), y.reshape(-1), reduction="mean" if FAULT else "sum"
        )
        if not FAULT:
            loss = loss / (num_items_in_batch if num_items_in_batch is not None else y.numel())
        self.last = loss.detach()
        return (loss, out) if return_outputs else loss


t = T(
    model=model,
    args=TrainingArguments(
        output_dir=f"/tmp/blind2/scratch/{os.getpid()}",
        per_device_train_batch_size=4,
        gradient_accumulation_steps=4,
        max_steps=12,
        learning_rate=2e-3,
        use_cpu=True,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        max_grad_norm=0.0,
        disable_tqdm=True,
        optim="sgd",
    ),
    train_dataset=data,
)
t.train()
final(t.last, model)
