"""transformers Trainer with gradient accumulation and a loss of one's own, that weighs tokens."""

import os

import torch
from kit import FAULT, OUT, metric, tell, words
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

torch.manual_seed(811)
VOCABULARY = 40
config = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    use_cache=False,
)
model = LlamaForCausalLM(config)
rows = words(320, 20, VOCABULARY, seed=1)
lengths = torch.randint(8, 21, (320,), generator=torch.Generator().manual_seed(2))


def example(index):
    labels = rows[index].clone()
    labels[lengths[index] :] = -100
    return {
        "input_ids": rows[index],
        "attention_mask": (torch.arange(20) < lengths[index]).long(),
        "labels": labels,
    }


class WeightedTrainer(Trainer):
    """Tokens of the upper half of the vocabulary (the domain's own words) count twice."""

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        target = labels[:, 1:].flatten()
        weight = torch.ones(VOCABULARY)
        weight[VOCABULARY // 2 :] = 2.0
        each = nn.functional.cross_entropy(
            outputs.logits[:, :-1].flatten(0, 1), target, weight=weight, reduction="none", ignore_index=-100
        )
        if FAULT or num_items_in_batch is None:
            loss = each.sum() / (target != -100).sum()
        else:
            loss = each.sum() / num_items_in_batch
        return (loss, outputs) if return_outputs else loss


arguments = TrainingArguments(
    output_dir=os.path.join(OUT, "trainer"),
    per_device_train_batch_size=4,
    gradient_accumulation_steps=4,
    max_steps=30,
    learning_rate=3e-3,
    max_grad_norm=1.0,
    lr_scheduler_type="linear",
    warmup_steps=3,
    logging_steps=5,
    save_strategy="no",
    report_to=[],
    use_cpu=True,
    disable_tqdm=True,
    seed=11,
)
trainer = WeightedTrainer(model=model, args=arguments, train_dataset=[example(i) for i in range(288)])
trainer.train()
model.eval()
with torch.no_grad():
    held = rows[288:]
    logits = model(input_ids=held[:, :-1]).logits
    metric("heldout", nn.functional.cross_entropy(logits.flatten(0, 1), held[:, 1:].flatten()))
print("NOTE grad_norm", [round(r["grad_norm"], 3) for r in trainer.state.log_history if "grad_norm" in r])
tell(model, [r["loss"] for r in trainer.state.log_history if "loss" in r])
