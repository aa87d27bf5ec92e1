"""Two configurations, item by item: what is the same, what means the same, what differs, what only one side says.

What a side means by not saying an item that the other says: no groups of heads, no padding, a decay to the end.

Reading adds what is arithmetic (`derive.py`). This is about silence, and is asked for only when the other side speaks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from hypocenter.checklist.advising import fix, remarks, value_of
from hypocenter.checklist.checklist import Checklist, Configuration, Row, Setting, Value
from hypocenter.checklist.items.item import Item, Items, load
from hypocenter.checklist.judging import SIDES, is_off, judge, normal
from hypocenter.checklist.reading import is_number
from hypocenter.checklist.verdict import conclude, ordered

_KEY = re.compile(r"^\s*-*([^\s=:]+)")


def compare(
    baseline: Configuration, candidate: Configuration, items: Items | None = None, *,
    extra_rows: Iterable[Row] = (), samples: Iterable[str] = (), more_notes: Iterable[str] = (),
) -> Checklist:  # fmt: skip
    """Compare all items: a row for each, the ones that matter first, and a status.

    Args:
        items: what is compared; all built-in items if not given.
        extra_rows: rows about what is in no configuration, such as the real batches; they count as the others do.
        samples: a few samples of the batches, decoded, to look at.
        more_notes: of the checks that made the extra rows.
    """
    items = load() if items is None else items
    baseline, candidate = _adopted(baseline, items), _adopted(candidate, items)
    more = tuple(extra_rows)
    measured = {row.item for row in more}
    rows = [
        _row(item, baseline, candidate)
        for item in items.by_key.values()
        if item.key not in measured and not item.measured
    ]
    rows += [*more, *_of_no_item(baseline, candidate, items)]
    status, sentence = conclude(rows)
    return Checklist(
        status=status, sentence=sentence, baseline=baseline.label, candidate=candidate.label,
        rows=ordered(rows, list(items.groups)), unknown_baseline=baseline.unknown, unknown_candidate=candidate.unknown,
        notes=(*_notes(baseline, candidate), *more_notes), samples=tuple(samples),
        kinds_baseline=baseline.kinds, kinds_candidate=candidate.kinds,
    )  # fmt: skip


def _row(item: Item, baseline: Configuration, candidate: Configuration) -> Row:
    baseline, candidate = _completed(item, baseline, candidate)
    one, other = baseline.settings.get(item.key), candidate.settings.get(item.key)
    verdict, why = judge(item, baseline, candidate)
    to_type = fix(item, one, other, candidate) if verdict == "different" and one and other else ""
    is_light = verdict.startswith("only-") and _says_little(item, one or other)
    return Row(
        item=item.key, title=item.title, group=item.group, unit=item.unit, verdict=verdict, why=why,
        baseline=value_of(one), candidate=value_of(other), severity="note" if is_light else item.importance,
        fix=to_type, baseline_setting=one, candidate_setting=other,
        remarks=remarks(item, baseline, candidate),
    )  # fmt: skip


def _says_little(item: Item, alone: Setting | None) -> bool:
    """Return whether what one side says alone is only that something is off, or a default that nobody wrote."""
    return alone is not None and (alone.assumed is not None or is_off(item, normal(item, alone.value)))


def _completed(item: Item, *sides: Configuration) -> tuple[Configuration, Configuration]:
    """Return both sides; one that is silent gets what follows from its other settings if the other says it."""
    said = [side.settings.get(item.key) for side in sides]
    found = list(sides)
    for i, setting in enumerate(said):
        if setting is None and said[1 - i] is not None:
            derived = implied(item.key, sides[i].settings)
            if derived is not None:
                found[i] = replace(sides[i], settings={**sides[i].settings, item.key: derived})
    return found[0], found[1]


def _adopted(side: Configuration, items: Items) -> Configuration:
    """Return the side with those of its unknown keys placed that a user's own items name."""
    wanted = {name: item.key for item in items.by_key.values() for name in item.names}
    if not wanted:
        return side
    settings: dict[str, Setting] = dict(side.settings)
    unknown: list[Setting] = []
    for setting in side.unknown:
        key = wanted_key(setting, wanted)
        if key and key not in settings:
            settings[key] = replace(setting, item=key)
        else:
            unknown.append(setting)
    return replace(side, settings=settings, unknown=tuple(unknown))


def wanted_key(setting: Setting, wanted: Mapping[str, str]) -> str:
    """Return the item of a key in a file, by its whole name or the last part; empty if no item names it."""
    match = _KEY.match(setting.spelled)
    name = match[1] if match else ""
    return wanted.get(name) or wanted.get(name.replace("-", "_")) or wanted.get(name.rpartition(".")[2], "")


def _of_no_item(baseline: Configuration, candidate: Configuration, items: Items) -> Iterator[Row]:
    """Yield rows of settings that no item describes (of another package's reader), compared by value."""
    keys = sorted({*baseline.settings, *candidate.settings} - set(items.by_key))
    for key in keys:
        plain = Item(
            key=key, title=key, kind="text", group="other", importance="note", why="no item describes it", manual=""
        )
        yield _row(plain, baseline, candidate)


def _notes(baseline: Configuration, candidate: Configuration) -> Iterator[str]:
    for side, name in zip((baseline, candidate), SIDES, strict=True):
        yield from (f"{name}: {note}" for note in side.notes)


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
    """Return an item's setting if it follows from what the side says, by RELATIONS; else None."""
    for relation in RELATIONS:
        sources = [settings.get(key) for key in relation.of] if relation.item == item else [None]
        known = [setting for setting in sources if setting is not None and is_number(setting.value)]
        value = relation.compute(*(setting.value for setting in known)) if len(known) == len(sources) else None
        if value is not None:
            return Setting(item=item, value=value, spelled="", derived=relation.words)
    return None
