"""A setting of the module that differs first, or of the model that holds it, is another one.

What it means
    Something that the module was made with differs: an attribute of its own, or one of its model's configuration, such
    as the base of rotary embedding (`config.rope_parameters.rope_theta`).

How it is decided
    Inputs agree, the output does not, and both recordings hold the module's attributes. An attribute of its own that
    differs counts as likely. Else the configurations of the modules that hold it are compared: one setting that differs
    alone counts as likely, of several those whose name has a word in common with the module's as possible. Numbers are
    not checked, so it is asked only when no fit that knows what a setting does explains the difference.

What to do
    Set it alike on both sides, then compare again.

When it is wrong
    When the setting that differs is not read by this module, and the module differs for a reason that was not recorded.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hypocenter.compare.case import Case
from hypocenter.compare.comparison import Confidence, Fit
from hypocenter.compare.fit_evidence import apart, say
from hypocenter.compare.fitting import fit

_CONFIGURATION = "config."
_ELSEWHERE = ("dtype", "name_or_path", "version", "layer_idx", "training")  # of no number, or known to other fits
_SAME = {"rope": "rotary", "rotary": "rope", "attn": "attention", "attention": "attn", "norm": "layernorm"}
_MOST = 3  # settings that are named


@fit("setting", last=True)
def setting(case: Case) -> Fit | None:
    """Another attribute of the first module that differs, or another entry of its model's configuration."""
    mine, other = case.modules
    if case.first.phase not in ("forward", "backward") or not case.inputs_agree or mine is None or other is None:
        return None
    if mine.path != case.first.site:  # the module of a parameter, or none of its own
        return None
    own = _apart({**mine.attributes, **mine.functions}, {**other.attributes, **other.functions})
    own = {name: values for name, values in own.items() if not name.startswith(_CONFIGURATION)}
    if own and mine.kind == other.kind:
        return _answer(case.first.site or "the model", own, "likely")
    found = _of_configurations(case)
    if len(found) == 1:
        return _answer("the model", found, "likely")
    related = {name: values for name, values in found.items() if _words(name) & _words(case.first.site)}
    return _answer("the model", related, "possible") if related else None


def _of_configurations(case: Case) -> dict[str, tuple[Any, Any]]:
    """Return the entries that differ in the configurations of all modules that hold the first one."""
    found: dict[str, tuple[Any, Any]] = {}
    site, there = case.first.site, case.first.candidate_site
    while True:
        mine, other = case.module(site, side=0), case.module(there, side=1)
        if mine is not None and other is not None:
            both = _apart(mine.attributes, other.attributes)
            found.update({name: values for name, values in both.items() if name.startswith(_CONFIGURATION)})
        if not site and not there:
            return found
        site, there = site.rpartition(".")[0], there.rpartition(".")[0]


def _apart(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    both = apart(left, right, ("",))
    return {name: values for name, values in both.items() if not any(word in name for word in _ELSEWHERE)}


def _words(name: str) -> set[str]:
    found = set(re.findall(r"[a-z]+", name.lower())) - {"config", "model", "layers", "emb", "parameters"}
    return found | {_SAME[word] for word in found if word in _SAME}


def _answer(whose: str, found: Mapping[str, tuple[Any, Any]], confidence: Confidence) -> Fit:
    named = sorted(found)[:_MOST]
    said = "; ".join(
        f"{name} of {whose} is {say(found[name][0])} in the baseline and {say(found[name][1])} in the candidate"
        for name in named
    )
    more = f"; and {len(found) - _MOST} more" if len(found) > _MOST else ""
    return Fit(
        name="setting", cause="config-mismatch", explained=1.0, confidence=confidence, text=said + more,
        values={name: list(found[name]) for name in named}, fix="set it alike on both sides",
    )  # fmt: skip
