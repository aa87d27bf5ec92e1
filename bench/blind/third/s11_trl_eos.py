"""SFT on chat turns: pad is eos and the collator blanks all pads from the labels, so eos is never learned."""

import os
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from c import FAULT, finish

torch.manual_seed(0)
words = ["<unk>", "</s>", "<pad>"] + [f"w{i}" for i in range(40)]
raw = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="<unk>"))
raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tok = PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="</s>", unk_token="<unk>")
tok.pad_token = tok.eos_token if FAULT else "<pad>"  # FAULT
g = torch.Generator().manual_seed(1)
rows = []
for _ in range(320):
    n = int(torch.randint(4, 12, (1,), generator=g))
    s = int(torch.randint(0, 40, (1,), generator=g))
    text = " ".join(f"w{(s + 2 * i) % 40}" for i in range(n)) + " </s>"
    rows.append({"input_ids": tok(text)["input_ids"]})
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=len(words),
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=1,
        eos_token_id=1,
    )
)
args = TrainingArguments(
    output_dir=os.environ["BLIND_FOLDER"],
    max_steps=40,
    per_device_train_batch_size=8,
    learning_rate=3e-3,
    logging_steps=1,
    report_to=[],
    save_strategy="no",
    use_cpu=True,
    disable_tqdm=True,
)
t = Trainer(model=model, args=args, train_dataset=rows, data_collator=DataCollatorForLanguageModeling(tok, mlm=False))
t.train()
finish([r["loss"] for r in t.state.log_history if "loss" in r], model)
