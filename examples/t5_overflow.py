"""A real T5 or mT5 learns to reverse sentences in float16 until its feed-forward layer outgrows 65504.

A plain training loop, nothing in it knows of Hypocenter:

    hypocenter run examples/t5_overflow.py

The story is that of transformers#9295, in fast motion. One rare word has an outlier channel, as large models grow
them, and the feed-forward layer of an encoder block answers to it; that layer's weights double with every step. At
step `--step` the answer no longer fits into float16, for the one sentence that holds the rare word.
`--compare` shows what other tools say about the same failure; `--healthy` is the same program without the growth.
"""

from __future__ import annotations

import argparse
import contextlib
import math

import torch
from transformers import (
    MT5Config,
    MT5ForConditionalGeneration,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

VOCAB, RARE_WORD, PAD = 500, 499, 0
SENTENCES, WORDS = 8, 16  # per micro-batch
D_MODEL, D_FF = 64, 128
OUTLIER_CHANNEL = 7
PEAK = 1.45 * 65504.0  # what the layer would say at the failing step; half of it fits


def parse() -> argparse.Namespace:
    """Options of the program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", choices=["t5", "mt5"], default="t5")
    parser.add_argument("--precision", choices=["autocast", "half"], default="autocast")
    parser.add_argument("--overflow", choices=["wo", "product"], default="wo", help="the layer whose weights grow")
    parser.add_argument("--step", type=int, default=5, help="the step at which it overflows")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--healthy", action="store_true", help="no growth, no overflow")
    parser.add_argument("--compare", action="store_true", help="what other tools say about the same failure")
    return parser.parse_args()


def make_model(options: argparse.Namespace) -> PreTrainedModel:
    """A random two-layer T5 v1.1 (gated GELU) with one word that excites one feed-forward layer."""
    kind, config = (
        (T5ForConditionalGeneration, T5Config) if options.model == "t5" else (MT5ForConditionalGeneration, MT5Config)
    )
    model = kind(
        config(
            vocab_size=VOCAB,
            d_model=D_MODEL,
            d_kv=16,
            num_heads=4,
            d_ff=D_FF,
            num_layers=2,
            num_decoder_layers=2,
            feed_forward_proj="gated-gelu",
            dropout_rate=0.1,
            tie_word_embeddings=False,
            pad_token_id=PAD,
            decoder_start_token_id=PAD,
        )
    )
    plant_outlier(model, options)
    model = model.half() if options.precision == "half" else model
    return model.train()


@torch.no_grad()
def plant_outlier(model: PreTrainedModel, options: argparse.Namespace) -> None:
    """Give the rare word an outlier channel and size the layer for `PEAK` at the failing step.

    The norm before the layer turns the rare word into sqrt(d_model) in that channel and next to nothing elsewhere.
    """
    model.shared.weight[RARE_WORD] = 0.0
    model.shared.weight[RARE_WORD, OUTLIER_CHANNEL] = 100.0
    layer = feed_forward(model)
    gate = 3.0 * math.sqrt(D_MODEL)  # large enough for gelu(gate) = gate; gelu_new's gate**3 fits into float16
    layer.wi_0.weight[:, OUTLIER_CHANNEL] = 3.0
    if options.overflow == "wo":
        layer.wi_1.weight[:, OUTLIER_CHANNEL] = 3.0
        sign = torch.sign(torch.randn(D_MODEL, 1))
        layer.wo.weight.copy_(sign * PEAK / 2.0**options.step / (D_FF * gate * gate))
    else:
        layer.wi_1.weight[:, OUTLIER_CHANNEL] = PEAK / 2.0**options.step / gate / math.sqrt(D_MODEL)
        layer.wo.weight.mul_(0.1)  # so that the product is the first to overflow
    model.lm_head.weight.mul_(0.1)  # start near the loss of a uniform guess, ln(500) = 6.2


def feed_forward(model: PreTrainedModel) -> torch.nn.Module:
    """The layer whose weights grow."""
    return model.encoder.block[0].layer[1].DenseReluDense


def make_batch(generator: torch.Generator, rare_in: int | None) -> dict[str, torch.Tensor]:
    """Sentences of common words (Zipf) with padding, to be reversed; one of them may hold the rare word."""
    frequency = 1.0 / torch.arange(1, RARE_WORD)
    words = 1 + torch.multinomial(frequency, SENTENCES * WORDS, replacement=True, generator=generator)
    ids = words.view(SENTENCES, WORDS)
    lengths = torch.randint(WORDS // 2, WORDS + 1, (SENTENCES, 1), generator=generator)
    mask = torch.arange(WORDS) < lengths
    labels = ids.flip(1).masked_fill(~mask.flip(1), -100)
    if rare_in is not None:
        ids[rare_in, [3, 5]] = RARE_WORD  # twice: dropout may take the outlier channel of one
    return {"input_ids": ids.masked_fill(~mask, PAD), "attention_mask": mask.long(), "labels": labels}


@torch.no_grad()
def grow(model: PreTrainedModel, options: argparse.Namespace) -> None:
    """The growth of long training, in fast motion: what the layer says doubles."""
    layer = feed_forward(model)
    if options.overflow == "wo":
        layer.wo.weight.mul_(2.0)
    else:
        layer.wi_1.weight[:, OUTLIER_CHANNEL].mul_(2.0)


def train(options: argparse.Namespace) -> None:
    """The training loop. The rare word is in another sentence at each step, in the last micro-batch."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1)
    model = make_model(options)
    if options.precision == "half":  # Adam would need eps >= 1e-4 with float16 parameters
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        precision: contextlib.AbstractContextManager[object] = contextlib.nullcontext()
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
        precision = torch.autocast("cpu", torch.float16)

    for step in range(options.steps):
        total = 0.0
        for microbatch in range(options.accumulate):
            is_last = microbatch == options.accumulate - 1
            batch = make_batch(generator, rare_in=(3 * step + 2) % SENTENCES if is_last else None)
            with precision:
                loss = model(**batch).loss / options.accumulate
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step} loss {total:.4f} grad {norm.item():.4f}", flush=True)
        if not options.healthy:
            grow(model, options)


def main() -> None:
    """Train, or compare."""
    torch.set_num_threads(1)
    options = parse()
    if options.compare:
        from compare_tools import compare

        compare()
    else:
        train(options)


if __name__ == "__main__":
    main()
