"""Files of one side in, its configuration out: `read` tells the kind of each by its content and merges them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hypocenter.checklist.catalogue import AT_MOST_BYTES, READERS, Reader, Source
from hypocenter.checklist.checklist import Configuration, ConfigurationError, Given, Setting, Value
from hypocenter.checklist.file_entries import Part, settle
from hypocenter.recognising import recognised, unknown

_Compute = Callable[..., "int | None"]


def read(paths: Sequence[Path]) -> Configuration:
    """Read the configuration that these files say together; a later file has the last word.

    What a file says stands above what follows from it, and that above the defaults of the frameworks.

    Raises:
        ConfigurationError: a file that is missing, damaged, or no configuration that we know.
    """
    if not paths:
        raise ConfigurationError("no file is given", why="a side of the checklist is one file or more", fix="name one")
    found = [_given(Path(path)) for path in paths]
    given = tuple(each for of_file in found for each in of_file)
    parts = [settle(each) for each in given]
    _, replaced, notes = _said(parts)
    return Configuration(
        label=", ".join(str(path) for path in paths),
        kinds=tuple(dict.fromkeys(each.kind for of_file in found for each in reversed(of_file))),
        settings=_of_parts(parts),
        given=given,
        unknown=tuple(setting for part in parts for setting in part.unknown),
        set_aside=(*(setting for part in parts for setting in part.set_aside), *replaced),
        notes=tuple(dict.fromkeys(notes)),
    )


def settled(given: Sequence[Given]) -> dict[str, Setting]:
    """Return the settings that all of this comes to, by item."""
    return _of_parts([settle(each) for each in given])


def _of_parts(parts: Sequence[Part]) -> dict[str, Setting]:
    settings, _, _ = _said(parts)
    derive(settings, of_defaults=False)
    for item, setting in _assumed(parts, settings).items():
        settings.setdefault(item, setting)
    derive(settings, of_defaults=True)
    return dict(sorted(settings.items()))


def _given(path: Path) -> list[Given]:
    try:
        source = _source(path)
        return _flat(_chosen(source).read(source))
    except OSError as error:
        raise ConfigurationError(
            "the configuration cannot be opened", where=str(path), why=error.strerror or str(error),
            fix="give a file that is there",
        ) from error  # fmt: skip
    except (MemoryError, RecursionError) as error:
        raise ConfigurationError(
            "the configuration is damaged", where=str(path), why=type(error).__name__, fix="give another file"
        ) from error


def _flat(given: Given) -> list[Given]:
    """Return what a file gives: first what it says beside its own, as its own has the last word."""
    return [*(inner for each in given.alongside for inner in _flat(each)), given]


def _source(path: Path) -> Source:
    if path.is_dir():
        return Source(path=path, is_directory=True, start=b"", is_whole=True)
    with path.open("rb") as file:
        start = file.read(AT_MOST_BYTES)
        return Source(path=path, is_directory=False, start=start, is_whole=not file.read(1))


def _chosen(source: Source) -> Reader:
    if not source.is_directory and not source.start.strip():
        raise ConfigurationError("the file is empty", where=str(source.path), fix="give the one that the program reads")
    found = recognised(READERS, source)
    if found is None:
        fix = "give a launch script, a log with its arguments, or the configuration file of the program"
        raise unknown(ConfigurationError, "kind of configuration", READERS, where=source.path, fix=fix)
    return found


def _said(parts: Sequence[Part]) -> tuple[dict[str, Setting], list[Setting], list[str]]:
    """Return what is said (the last word wins), what it replaces, and notes where two files do not agree."""
    said: dict[str, Setting] = {}
    replaced: list[Setting] = []
    notes = [note for part in parts for note in part.notes]
    for part in parts:
        for item, setting in part.settings.items():
            earlier = said.get(item)
            if earlier is not None and earlier.derived is None and setting.derived is not None:
                replaced.append(setting)
                continue  # what is written stands above what is computed
            if earlier is not None and earlier.value != setting.value and earlier.derived is None:
                notes.append(
                    f"{setting.where}: {setting.spelled} takes the place of {earlier.spelled} ({earlier.where})"
                )
            replaced += [earlier] if earlier is not None else []
            said[item] = setting
    return said, replaced, notes


def _assumed(parts: Sequence[Part], said: dict[str, Setting]) -> dict[str, Setting]:
    """Return defaults of the frameworks; of experts only where there are some."""
    found: dict[str, Setting] = {}
    for part in sorted(parts, key=lambda part: part.order):
        for item, setting in part.assumed.items():
            found.setdefault(item, setting)
    experts = said.get("moe.num_experts") or found.get("moe.num_experts")
    has_experts = experts is not None and (experts.value is None or experts.value not in (0, 1))
    return {
        item: value
        for item, value in found.items()
        if has_experts or not item.startswith("moe.") or item == "moe.num_experts"
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """`item` from `sources`, all of which must be numbers."""

    item: str
    sources: tuple[str, ...]
    compute: _Compute
    text: str


def _exact(numerator: float, denominator: float) -> int | None:
    """Return the quotient when it is a whole number above 0; else None."""
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
    """Add what can be computed from other settings; what is there already is left as it is.

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
    sources = [setting for setting in known if setting is not None and is_number(setting.value)]
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


def is_number(value: Value) -> bool:
    """Return whether the value is a finite number, so that one can calculate with it."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
