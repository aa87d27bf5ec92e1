"""SFT in TRL on rows that the program tokenizes itself; the loss is on completions, rows are cut at MAX_LENGTH."""

import torch
from datasets import Dataset
from kit import FAULT, OUT, metric, tell, words
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast, TrainerCallback, set_seed
from trl import SFTConfig, SFTTrainer

set_seed(306)
VOCABULARY = 32
names = ["<s>", "</s>", "<unk>", "<pad>"] + [f"w{i}" for i in range(4, VOCABULARY)]
raw = Tokenizer(models.WordLevel({n: i for i, n in enumerate(names)}, unk_token="<unk>"))
raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=raw, bos_token="<s>", eos_token="</s>", unk_token="<unk>", pad_token="<pad>"
)
g = torch.Generator().manual_seed(6)
sizes = torch.randint(6, 27, (480,), generator=g).tolist()  # prompts, in tokens
rows = words(480, 32, VOCABULARY, seed=6)


def text(ids):
    return " ".join(f"w{i}" for i in ids.tolist())


examples = [{"prompt": text(r[:n]), "completion": " " + text(r[n : n + 5])} for r, n in zip(rows, sizes)]
MAX_LENGTH = 20 if FAULT else 40


def tokenize(example):
    prompt = tokenizer("<s> " + example["prompt"])["input_ids"]
    completion = tokenizer(example["completion"] + " </s>")["input_ids"]
    labels = [-100] * len(prompt) + completion
    return {"input_ids": (prompt + completion)[:MAX_LENGTH], "labels": labels[:MAX_LENGTH]}


dataset = Dataset.from_list([tokenize(e) for e in examples[:416]])

model = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=3,
    )
)
losses = []


class Keep(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            losses.append(logs["loss"])


trainer = SFTTrainer(
    model=model,
    args=SFTConfig(
        output_dir=OUT,
        max_length=None,
        per_device_train_batch_size=16,
        max_steps=52,
        learning_rate=4e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        dataset_kwargs={"skip_prepare_dataset": True},
    ),
    train_dataset=dataset,
    processing_class=tokenizer,
    callbacks=[Keep()],
)
batch = next(iter(trainer.get_train_dataloader()))
print("CHECK rows without a label:", int((batch["labels"] == -100).all(dim=1).sum()), "of", len(batch["labels"]))
trainer.train()
model.eval()
with torch.no_grad():
    ids = rows[416:]
    logits = model(ids).logits[:, 24:-1]
    metric("heldout_loss", torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, 25:].flatten()))
tell(model, losses)
