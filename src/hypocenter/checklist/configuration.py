"""What a reader makes of a configuration: settings under canonical keys, and whatever it could not place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hypocenter.checklist.entry import Given

Scalar = bool | int | float | str | None
Value = Scalar | tuple[Scalar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One value, in the units and words of its item, and where it was said."""

    item: str  # canonical key: "model.num_layers", "optimizer.beta2"; "" if no item is known for it
    value: Value
    spelled: str  # as it stands there: "--num-layers 24", "num_hidden_layers: 24"
    where: str = ""  # "train.sh:17", "run_llama.yaml:41"
    assumed: str | None = None  # whose default it is, when nobody said it: "Megatron-LM 0.12"
    derived: str | None = None  # how it was computed from others: "hidden_size / num_attention_heads"
    unresolved: str | None = None  # why its value, None here, cannot be told: "$1 is given when the script is started"


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One side of a checklist. All that was read is either in `settings` or in `unknown`: nothing is dropped."""

    label: str  # how a person calls it: the path
    kinds: tuple[str, ...]  # readers that read it: ("megatron-shell",), ("hf-config", "deepspeed-json")
    settings: Mapping[str, Setting] = field(default_factory=dict)  # by canonical key
    unknown: tuple[Setting, ...] = ()  # keys that no table knows
    set_aside: tuple[Setting, ...] = ()  # known, and of no meaning for numbers: paths, log intervals
    notes: tuple[str, ...] = ()  # what could not be read or resolved, in words
    given: tuple[Given, ...] = ()  # what its files say, before any table says what it means; the last has the last word
