"""Trainer and DataCollatorForLanguageModeling, with a tokenizer that came without a pad token."""

import torch
from kit import FAULT, OUT, metric, tell, words
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

set_seed(301)
VOCABULARY = 32
names = ["<s>", "</s>", "<unk>", "<pad>"] + [f"w{i}" for i in range(4, VOCABULARY)]
raw = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="<unk>"))
raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
if FAULT:
    tokenizer.pad_token = tokenizer.eos_token
else:
    tokenizer.pad_token = "<pad>"

g = torch.Generator().manual_seed(1)
lengths = torch.randint(6, 15, (640,), generator=g)
texts = [
    " ".join(["<s>"] + [f"w{i}" for i in row[:n].tolist()] + ["</s>"])
    for row, n in zip(words(640, 15, VOCABULARY, seed=1), lengths)
]
encoded = [dict(tokenizer(t, return_token_type_ids=False)) for t in texts]

config = GPT2Config(
    vocab_size=VOCABULARY,
    n_positions=32,
    n_embd=32,
    n_layer=2,
    n_head=2,
    bos_token_id=0,
    eos_token_id=1,
    pad_token_id=tokenizer.pad_token_id,
)
model = GPT2LMHeadModel(config)
losses = []


class Keep(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            losses.append(logs["loss"])


trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=OUT,
        per_device_train_batch_size=16,
        max_steps=60,
        learning_rate=5e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=encoded[:576],
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
    callbacks=[Keep()],
)
trainer.train()
model.eval()
with torch.no_grad():
    ids = torch.tensor(encoded[600]["input_ids"])[None]
    metric("log_p_of_end", model(ids).logits[0, -2].log_softmax(-1)[1])
tell(model, losses)
