"""What a side means by not saying an item that the other says: no groups of heads, no padding, a decay to the end.

Reading adds what is arithmetic (`derive.py`). This is about silence, and is asked for only when the other side speaks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from hypocenter.checklist.configuration import Setting, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Relation:
    """`item` from the values of `of`, all of which must be known numbers; `words` tell how."""

    item: str
    of: tuple[str, ...]
    words: str
    compute: Callable[..., Value]


def _share(part: float, whole: float) -> Value:
    return part / whole if whole else None


def _itself(value: float) -> Value:
    return int(value) if value == int(value) else value


RELATIONS: tuple[Relation, ...] = (
    Relation(
        item="model.num_key_value_heads", of=("model.num_attention_heads",), compute=_itself,
        words="nothing groups the heads, so as many as num_attention_heads",
    ),
    Relation(
        item="model.padded_vocab_size", of=("model.vocab_size",), compute=_itself,
        words="nothing says that it is padded, so vocab_size",
    ),
    Relation(
        item="model.softmax_scale", of=("model.head_dim",), words="1 / sqrt(head_dim)",
        compute=lambda size: 1 / math.sqrt(size) if size > 0 else None,
    ),
    Relation(
        item="moe.expert_intermediate_size", of=("model.intermediate_size",), compute=_itself,
        words="experts have the size of the feed-forward layer",
    ),
    *(
        Relation(
            item="optimizer.warmup_fraction", of=("optimizer.warmup_steps", steps), compute=_share,
            words=f"warmup_steps / {steps.partition('.')[2]}",
        )
        for steps in ("optimizer.decay_steps", "optimizer.total_steps")
    ),
    Relation(
        item="optimizer.decay_steps", of=("optimizer.total_steps",), compute=_itself, words="it decays to the last step"
    ),
    Relation(
        item="parallel.distributed_optimizer", of=("parallel.zero_stage",), compute=lambda stage: stage >= 1,
        words="ZeRO stage 1 and above spreads the optimizer",
    ),
)  # fmt: skip


def implied(item: str, settings: Mapping[str, Setting]) -> Setting | None:
    """The setting of an item that a side does not say, if it follows from what it says; None if not."""
    for relation in RELATIONS:
        sources = [settings.get(key) for key in relation.of] if relation.item == item else [None]
        known = [setting for setting in sources if setting is not None and _is_number(setting.value)]
        value = relation.compute(*(setting.value for setting in known)) if len(known) == len(sources) else None
        if value is not None:
            return Setting(item=item, value=value, spelled="", derived=relation.words)
    return None


def _is_number(value: Value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
