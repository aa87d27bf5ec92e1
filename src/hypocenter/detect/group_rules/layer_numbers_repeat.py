"""Layers of different pipeline stages carry the same number.

What it means
    A transformer layer's `layer_number` counts through the whole model, over all pipeline stages. Here a later stage
    counts from the start again. Everything that depends on the number is wrong on that stage: scaling attention by it
    (`query_key_layer_scaling`), initialisation by depth, layers that are of another kind from some depth on,
    checkpoints that name layers by it. Without pipeline parallelism nothing is seen of it.

How it is decided
    Each rank notes the number that each member of its lists of layers carries (Megatron-Core's convention, counted from
    1). It fires, once, when two stages of one pipeline have a number in common in lists of the same name.

What to do
    Add the number of layers on all stages before: `layer_number + get_transformer_layer_offset(config)`.

When it is wrong
    When the number is meant to be that on the stage, and nothing depends on it but names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from hypocenter.detect.group_engine import group_rule
from hypocenter.detect.panel import Panel
from hypocenter.nouns import Finding, Remedy

CODE = "HC335"
_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


@group_rule(CODE, "config", severity="warning", reads=(), asked="rows")
def check(panel: Panel) -> Iterator[Finding]:
    """Look at the first step of the recording; report the first pipeline and the first stage that repeats."""
    notes = panel.history.notes[CODE]
    if notes or not panel.records:
        return
    notes["is_looked_at"] = True  # places are those of the whole recording
    for stages in panel.groups("pp"):
        ordered = sorted(stages, key=lambda rank: (panel.coords(rank).pp or 0, rank))
        lists = {rank: _lists(panel.places[rank].layers) for rank in ordered if rank in panel.places}
        found = next(_repeats(ordered, lists), None)
        if found is not None:
            yield _finding(panel, *found)
            return


def _lists(layers: Mapping[str, int]) -> dict[str, dict[int, str]]:
    """Return the numbers of each list of layers, with their paths; two lists are one if only numbers differ."""
    found: dict[str, dict[int, str]] = {}
    for path, number in layers.items():
        found.setdefault(_NUMBER.sub("#", path), {}).setdefault(number, path)
    return found


def _repeats(
    stages: Sequence[int], lists: Mapping[int, Mapping[str, Mapping[int, str]]]
) -> Iterator[tuple[int, int, str, Mapping[int, str], Mapping[int, str]]]:
    """Yield (earlier rank, later rank, path on the later, numbers on the earlier, numbers on the later)."""
    for at, later in enumerate(stages):
        for earlier in stages[:at]:
            for name, numbers in lists.get(later, {}).items():
                before = lists.get(earlier, {}).get(name, {})
                if common := sorted(set(numbers) & set(before)):
                    yield earlier, later, numbers[common[0]], before, numbers


def _finding(
    panel: Panel, earlier: int, later: int, path: str, before: Mapping[int, str], numbers: Mapping[int, str]
) -> Finding:
    common = sorted(set(before) & set(numbers))
    first, second = panel.coords(earlier).pp, panel.coords(later).pp
    return Finding(
        code=CODE,
        kind="config",
        severity="warning",
        title=f"layers of pipeline stages {first} and {second} carry the same numbers",
        step=panel.step,
        rank=later,
        phase="forward",
        site=path,
        cause="config-mismatch",
        limit=float(max(before)),
        actual=float(common[0]),
        why=(
            f"stage {first} (rank {earlier}) has layers {_in_words(before)}, stage {second} (rank {later}) has "
            f"{_in_words(numbers)}: {_in_words(common)} twice",
            f"the first that differs from the place in the model is {path} on rank {later}",
        ),
        confidence="likely",
        remedy=Remedy(
            action="global-layer-number",
            targets=(path,),
            text="number layers through all pipeline stages: add the number of layers on the stages before",
        ),
    )


def _in_words(numbers: Mapping[int, str] | Sequence[int]) -> str:
    ordered = sorted(numbers)
    return ", ".join(map(str, ordered[:8])) + (f", ... ({len(ordered)} in all)" if len(ordered) > 8 else "")
