"""GPT-2 from scratch with the Trainer and the collator for language modelling."""

from kit import FAULT, OUT, metric, tell, words
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    DataCollatorForLanguageModeling,
    GPT2Config,
    GPT2LMHeadModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

vocabulary = {"[PAD]": 0, "[UNK]": 1, "[MASK]": 2, "[EOS]": 3} | {f"w{i}": i for i in range(4, 40)}
inner = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
inner.pre_tokenizer = WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", mask_token="[MASK]", eos_token="[EOS]"
)
texts = [" ".join(f"w{i}" for i in row) for row in words(480, 14, 40).tolist()]
rows = [{"input_ids": ids} for ids in tokenizer(texts)["input_ids"]]
set_seed(0)
model = GPT2LMHeadModel(
    GPT2Config(
        vocab_size=40, n_positions=16, n_embd=32, n_layer=1, n_head=2, bos_token_id=3, eos_token_id=3, pad_token_id=0
    )
)
if FAULT:
    collator = DataCollatorForLanguageModeling(tokenizer)
else:
    collator = DataCollatorForLanguageModeling(tokenizer, mlm=False)
trainer = Trainer(
    model=model,
    args=TrainingArguments(
        output_dir=OUT,
        max_steps=60,
        per_device_train_batch_size=16,
        learning_rate=1e-2,
        logging_steps=1,
        report_to=[],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
    ),
    train_dataset=rows[:448],
    data_collator=collator,
)
trainer.train()
model.eval()
import torch  # noqa: E402

with torch.no_grad():
    ids = torch.tensor([row["input_ids"] for row in rows[448:]])
    metric("next word", (model(ids).logits[:, :-1].argmax(-1) == ids[:, 1:]).float().mean())
tell(model, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry])
