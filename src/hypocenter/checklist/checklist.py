"""The answer of `hypocenter checklist`: rows and a status. Renderings are made from it, and compute nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from msgspec import Meta

from hypocenter.errors import HypocenterError

Verdict = Literal["same", "equivalent", "different", "only-baseline", "only-candidate", "cannot-tell", "not-set"]
# `not-set`: neither side says it, and neither side's default is known
Importance = Literal["error", "warning", "note"]
Status = Literal["same", "different", "cannot-tell"]
Scalar = bool | int | float | str | None
Value = Scalar | tuple[Scalar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Remark:
    """What is worth saying of a side even where both agree: dropout is on."""

    side: Annotated[str, Meta(extra_json_schema={"enum": ("baseline", "candidate", "baseline and candidate")})]
    severity: Importance
    text: str
    fix: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One item on both sides."""

    item: str  # canonical key, or "data.ids_in_range" for a check on the batches
    title: str  # "number of transformer layers"
    group: str  # structure, moe, optimizer, weights, precision, parallel, data, other
    baseline: Value
    candidate: Value
    verdict: Verdict
    severity: Importance  # how much it matters if different
    why: str  # one sentence: why it is equivalent, or what a difference does
    unit: str = ""
    fix: str = ""  # what to change, as something to type
    baseline_setting: Setting | None = None
    candidate_setting: Setting | None = None
    remarks: tuple[Remark, ...] = ()  # of no influence on the status

    @property
    def assumed(self) -> bool:
        """Whether a side's value is a default that nobody wrote down."""
        return any(s is not None and s.assumed for s in (self.baseline_setting, self.candidate_setting))


@dataclass(frozen=True, slots=True, kw_only=True)
class Checklist:
    """All rows, the ones that matter first."""

    status: Status
    sentence: str  # the answer in one sentence
    baseline: str  # labels
    candidate: str
    rows: tuple[Row, ...] = ()
    unknown_baseline: tuple[Setting, ...] = ()
    unknown_candidate: tuple[Setting, ...] = ()
    notes: tuple[str, ...] = ()
    kinds_baseline: tuple[str, ...] = ()  # readers that read it
    kinds_candidate: tuple[str, ...] = ()
    samples: tuple[str, ...] = ()  # a few samples of the batches, decoded


class ConfigurationError(HypocenterError):
    """A file that is no configuration we know, or is damaged."""

    slug = "bad-configuration"
    exit_code = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One key with its value."""

    key: str  # dotted for what is nested: "optimizer.betas"
    value: Value
    spelled: str  # "--num-layers 24", "num_layers: 24"
    where: str = ""  # "train.sh:17"
    is_resolved: bool = True  # False: it is said, but with what cannot be told from the file: "--tp $1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """All that one file says to one framework. `table`: stem of the names table."""

    kind: str  # name of the reader
    table: str
    entries: tuple[Entry, ...]
    notes: tuple[str, ...] = ()
    alongside: tuple[Given, ...] = field(default=())  # what else the file says: its launcher, its environment


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
