"""What the programs share: a toy language, a tokenizer, and a last line that names every bit of the weights."""

import hashlib
import os
import random

import torch

FAULT = os.environ.get("FAULT", "1") == "1"
OUT = os.environ.get("BLIND_FOLDER", ".")  # where a program may write


def tell(model, losses=()):
    """Print the losses, and a digest of the model's weights and buffers."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        if not torch.is_tensor(value):
            continue
        value = value.detach()
        if hasattr(value, "full_tensor"):
            value = value.full_tensor()
        digest.update(name.encode() + value.contiguous().float().cpu().numpy().tobytes())
    print("LOSSES", " ".join(f"{float(x):.6g}" for x in losses))
    print("FINAL", digest.hexdigest())


def told(trainer):
    """tell() of a Trainer, with the losses of its log."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    tell(model, [row["loss"] for row in trainer.state.log_history if "loss" in row])


def sentences(count, low, high, vocabulary, seed=0):
    """Token lists of a toy language: each word follows from the last two, now and then by chance."""
    chance = random.Random(seed)
    out = []
    for _ in range(count):
        words = [chance.randrange(4, vocabulary), chance.randrange(4, vocabulary)]
        for _ in range(chance.randrange(low, high) - 2):
            if chance.random() < 0.15:
                words.append(chance.randrange(4, vocabulary))
            else:
                words.append(4 + (3 * words[-1] + words[-2]) % (vocabulary - 4))
        out.append(words)
    return out


def tokenizer(words=60):
    """A word-level fast tokenizer: w4, w5, ...; 0 pad, 1 eos, 2 bos, 3 unk."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = {"<pad>": 0, "<eos>": 1, "<bos>": 2, "<unk>": 3} | {f"w{n}": n for n in range(4, words)}
    inner = Tokenizer(models.WordLevel(names, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>"
    )


def text(ids):
    """The words of a token list."""
    return " ".join(f"w{n}" for n in ids)


def arguments(**more):
    """Trainer arguments with the defaults of Transformers, short and on the CPU."""
    from transformers import TrainingArguments

    base = dict(
        output_dir=OUT,
        max_steps=30,
        per_device_train_batch_size=8,
        learning_rate=2e-3,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    return TrainingArguments(**(base | more))
