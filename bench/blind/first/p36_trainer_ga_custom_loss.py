# Trainer with accumulation: a compute_loss of one's own ignores num_items_in_batch: loss isn't divided by the window (x4)
from mini import *
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

seed()
m = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=V, n_positions=64, n_embd=32, n_layer=2, n_head=4, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0
    )
)
ds = [{"input_ids": r, "labels": r} for r in corpus(1024)]


class T(Trainer):
    def compute_loss(s, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(input_ids=inputs["input_ids"])
        y = inputs["labels"][:, 1:]
        n = num_items_in_batch if not FAULT and num_items_in_batch is not None else (y != -100).sum()
        loss = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), y.flatten(), reduction="sum") / n
        return (loss, out) if return_outputs else loss


a = TrainingArguments(
    os.path.join(os.environ.get("BLIND_FOLDER", "."), "trainer"),
    per_device_train_batch_size=8,
    gradient_accumulation_steps=4,
    max_steps=30,
    learning_rate=0.1,
    optim="sgd",
    max_grad_norm=0.0,
    report_to=[],
    save_strategy="no",
    logging_steps=10,
    use_cpu=True,
    lr_scheduler_type="constant",
)
t = T(model=m, args=a, train_dataset=ds)
r = t.train()
done(m, r.training_loss)
