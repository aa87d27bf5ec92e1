"""What settings say together: one is computed from others, in the items' own units."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from hypocenter.checklist.configuration import Setting, Value

_Compute = Callable[..., "int | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`item` from `sources`, all of which must be numbers."""

    item: str
    sources: tuple[str, ...]
    compute: _Compute
    text: str


def _exact(numerator: float, denominator: float) -> int | None:
    """The quotient when it is a whole number above 0."""
    if denominator <= 0 or numerator % denominator:
        return None
    return int(numerator // denominator) or None


def _product(*numbers: float) -> int | None:
    found = math.prod(numbers)
    return int(found) if found == int(found) and found > 0 else None


_MODEL = ("parallel.tensor", "parallel.pipeline", "parallel.context")
_GLOBAL, _MICRO, _N = "batch.global_batch_size", "batch.micro_batch_size", "batch.accumulation_steps"
RULES = (
    Rule(
        item="model.head_dim", sources=("model.hidden_size", "model.num_attention_heads"), compute=_exact,
        text="hidden_size / num_attention_heads",
    ),
    Rule(
        item="parallel.data", sources=("parallel.world_size", *_MODEL),
        compute=lambda world, *model: _exact(world, math.prod(model)),
        text="world_size / (tensor * pipeline * context)",
    ),
    Rule(
        item="parallel.world_size", sources=("parallel.data", *_MODEL), compute=_product,
        text="data * tensor * pipeline * context",
    ),
    Rule(
        item=_N, sources=(_GLOBAL, _MICRO, "parallel.data"), compute=lambda all_, one, dp: _exact(all_, one * dp),
        text="global_batch_size / (micro_batch_size * data)",
    ),
    Rule(
        item=_GLOBAL, sources=(_MICRO, "parallel.data", _N), compute=_product,
        text="micro_batch_size * data * accumulation_steps",
    ),
    Rule(
        item=_MICRO, sources=(_GLOBAL, _N, "parallel.data"), compute=lambda all_, n, dp: _exact(all_, n * dp),
        text="global_batch_size / (accumulation_steps * data)",
    ),
    Rule(
        item="optimizer.warmup_steps", sources=("optimizer.warmup_fraction", "optimizer.decay_steps"),
        compute=lambda part, all_: math.ceil(round(part * all_, 6)), text="warmup_fraction * decay_steps",
    ),
    Rule(
        item="optimizer.warmup_steps", sources=("optimizer.warmup_fraction", "optimizer.total_steps"),
        compute=lambda part, all_: math.ceil(round(part * all_, 6)), text="warmup_fraction * total_steps",
    ),
)  # fmt: skip


def derive(settings: dict[str, Setting], *, of_defaults: bool) -> None:
    """Add what can be computed; what is there already is left as it is.

    Args:
        settings: by item; added to.
        of_defaults: whether what follows from a default may be added: it is then assumed itself.
    """
    for _ in RULES:  # one may wait for another
        for rule in RULES:
            known = [settings.get(item) for item in rule.sources]
            found = None if rule.item in settings else _computed(rule, known, of_defaults)
            if found is not None:
                settings[rule.item] = found


def _computed(rule: Rule, known: list[Setting | None], of_defaults: bool) -> Setting | None:
    sources = [setting for setting in known if setting is not None and _is_number(setting.value)]
    whose = next((setting.assumed for setting in sources if setting.assumed), None)
    if len(sources) < len(known) or (whose and not of_defaults):
        return None
    try:
        value = rule.compute(*(setting.value for setting in sources))
    except (OverflowError, ValueError, ZeroDivisionError):
        return None
    if value is None:
        return None
    said = [setting for setting in sources if not setting.assumed] or sources
    return Setting(
        item=rule.item, value=value, derived=rule.text, assumed=whose, where=said[0].where,
        spelled=", ".join(dict.fromkeys(setting.spelled for setting in said if setting.spelled)),
    )  # fmt: skip


def _is_number(value: Value) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
