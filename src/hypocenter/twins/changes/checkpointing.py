"""Activation checkpointing changes nothing.

What it means
    Under a checkpoint the forward is done twice, the second time in backward. If the second differs, gradients are
    those of another function: dropout with other random numbers, autocast that is off by then, a layer that counts its
    calls, a norm whose running statistics move twice.

How it is decided
    The program as it is against the same with every `torch.utils.checkpoint` left out. Every value must be equal to the
    bit.

What to do
    Leave `preserve_rng_state` on, and keep what a checkpointed function changes out of it.

When it is wrong
    Checkpoints of other libraries (DeepSpeed, Megatron) are not left out.
"""

from __future__ import annotations

from dataclasses import replace

from hypocenter.twins.answer import Twin
from hypocenter.twins.change import Asked, change
from hypocenter.twins.judging import answer, judge
from hypocenter.twins.options import recording
from hypocenter.twins.runs import NotApplicableError


@change("checkpointing", order=8)
def checkpointing(asked: Asked) -> Twin:
    """Compare the program as it is with one that checkpoints nothing."""
    config, make = recording(asked, asked.steps), asked.runs.make
    own = make("checkpointed", config, words=asked.first_words).recorded()
    plain = make("plain", replace(config, change=("checkpointing=off",)), words=asked.second_words).recorded()
    if "checkpointing" not in plain.noted:
        raise NotApplicableError(
            "nothing is checkpointed",
            where="hypocenter twin checkpointing",
            why="the program does not call torch.utils.checkpoint",
        )
    again = make("checkpointed-again", config, words=asked.first_words)
    judged = judge(own, again, plain, is_exact=True)
    found = answer(judged, (own, again, plain), "without checkpointing")
    if found.status != "differs":
        return found
    return replace(
        found,
        cause="recomputed-otherwise",
        confidence="likely",
        fix="leave preserve_rng_state on, and change nothing inside of what is checkpointed",
    )
