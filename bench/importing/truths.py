"""What is wrong with each program of `msprobe_answers.py`, and which words of an answer are right.

Patterns are searched in "step N: rank_R: ...", for both tools alike. A line of the program counts as its place:
level L1 has no modules.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

LEVELS = ("L0", "L1", "mix")
LEVELS_OF_PAIRS = ("L0", "mix")
_PROGRAM = (Path(__file__).parent / "faulty_gpt.py").read_text(encoding="utf-8").splitlines()


def _line(text: str) -> str:
    """FILE:LINE of the program, as a pattern."""
    (number,) = [n for n, line in enumerate(_PROGRAM, 1) if text in line]
    return rf"faulty_gpt\.py:{number}\b"


@dataclass(frozen=True, slots=True)
class Truth:
    """A case, what is wrong with it, and patterns of right answers; without any, nothing is wrong."""

    case: str
    words: str
    right: tuple[re.Pattern[str], ...] = ()


def _truth(case: str, words: str, *right: str) -> Truth:
    return Truth(case, words, tuple(re.compile(pattern) for pattern in right))


OVERFLOWS = (
    _truth("cast", "a cast to fp16 overflows in `blocks.1.mlp`, step 0", r"step 0.*blocks\.1\.mlp",
           rf"step 0.*{_line('.half()')}"),
    _truth("mask", "none: a healthy model with a mask of -inf"),
    _truth("mask_log", "mask of -inf, and the log of a negative number in the loss, step 1", r"step 1.*Torch\.log\b"),
    _truth("sqrt", "square root at 0: inf in backward only, step 1", r"step 1.*Torch\.sqrt\b"),
    _truth("input", "NaN in the batch that goes into `inp`, step 1", r"step 1.*\binp\b.*given NaN",
           rf"step 1.*given NaN.*{_line('self.inp(extra)')}", r"step 1.*Module\.inp\b"),
    _truth("weight", "NaN in `blocks.1.attn.proj.weight`, step 1", r"step 1.*blocks\.1\.attn\.proj",
           rf"step 1.*{_line('return self.proj(')}"),
    _truth("adam", "Adam with eps 0 divides by 0, step 0", r"step 0.*Tensor\.addcdiv_", r"step 1.*update of step 0"),
    _truth("two_ranks", "two ranks: the loss of rank 1 overflows, step 1", r"step 1: rank_1.*Tensor\.pow\b"),
    _truth("two_ranks_late", "the same, only step 2 was dumped: weights are NaN when it begins",
           r"was not finite before the step", r"Functional\.embedding was given NaN"),
)  # fmt: skip

PAIRS = (
    _truth("eps", "eps 1e-3 for 1e-5 in both norms of block 2", r"step 0.*blocks\.2\.ln1", r"step 0.*layer_norm\.4\."),
    _truth("bf16", "MLP of block 2 in bfloat16", r"step 0.*blocks\.2\.mlp\b", r"step 0.*Functional\.linear\.11\."),
    _truth("decay", "no weight decay on biases", r"step 0.*bias"),
    _truth("threads", "none: 2 threads for 1"),
    _truth("lora", "none: a LoRA in block 0 that adds zero"),
)
