"""A checkpoint was loaded in part, or its load changes nothing.

What it means
    `load_state_dict(strict=False)` left parameters as they were, and put values nowhere that have the same shapes and
    whose names end alike: a prefix is missing or is one too many (`module.`, `model.`, `_orig_mod.`). A part of the
    model begins at random although the checkpoint has it. Or what was loaded is initialised once more afterwards. Or
    what was kept as the best state, or over an evaluation, is no copy: `state_dict()` gives the parameters themselves.
    Or a resumed model computes something else than the one that was saved, by what no checkpoint holds: a buffer that
    is not persistent or was made by another configuration, the range of a quantiser in a plain attribute.

How it is decided
    The keys that `load_state_dict` gives back as missing and as unexpected: pairs of equal shape whose names have the
    last two parts or more in common, and only those of parameters that are trained. Or: of what a load has put into
    parameters (samples of up to 16 matrices), more than half has nothing to do with what the first update finds there.
    Or: the state that is loaded is one that `state_dict()` gave, lies where the parameters lie, and more than half of
    it (samples again) has changed since it was given. Or: a model was given the weights (samples) of another one of its
    structure that was asked for its `state_dict` in this process, and its optimizer a state; something beside these is
    not what it was there, though nothing has set it since; and in a replay of the first micro-batch that makes another
    loss. Options of modules of torch, and numbers that the other model had not changed in training, do not count.

What to do
    Rename the keys before loading, and look at what `load_state_dict` gives back. Keep `copy.deepcopy(state_dict())`.
    Register what a model has learned as a buffer, and build the model from the configuration that it was saved with.

When it is wrong
    Where a part is meant to begin anew and a part of another model happens to have that name and shape. Where a resumed
    model is to compute something else on purpose, as one with another base of its positions for longer texts.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import NOT_BROUGHT_BACK, NOT_LOADED, NOT_SAVED, WRITTEN_OVER
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy, replace


@rule(
    "HC255", "config", severity="warning", reads=("optimizer",), asked="rows",
    not_in={"mindspore": "it is not looked at there yet"},
)  # fmt: skip
def check(window: Window) -> Iterator[Finding]:
    """Fire at the step at which it is seen."""
    for row in window.by_phase["optimizer"]:
        n = round(row.summary.sum)
        if row.port == NOT_BROUGHT_BACK:
            yield replace(
                _at(row, window.rank), cause="program-error",
                title="a load brings nothing back: what was saved are the parameters themselves",
                why=(f"of {row.call} that were looked at, {n} have changed since state_dict() gave them",),
                then=("the model stays as it is",),
                remedy=Remedy(action="copy-state", text="keep copy.deepcopy(model.state_dict())"),
            )  # fmt: skip
        elif row.port == WRITTEN_OVER:
            yield replace(
                _at(row, window.rank), title=f"{row.site} was loaded, and written over before the first update",
                why=(f"of {row.call} parameters that were loaded, {n} have nothing of it left (cosine below 0.3)",),
                then=("training begins at other weights than those of the checkpoint",),
                remedy=Remedy(action="load-last", text="initialise first, and load after that"),
            )  # fmt: skip
        elif row.port == NOT_SAVED:
            then, now, loss, other = row.names
            yield replace(
                _at(row, window.rank), param=None,
                title=f"{row.site} is not what it was in the model that was saved: no checkpoint holds it",
                why=(
                    f"the {row.module} was {then} there and is {now} here" + (n > 1) * f"; {n} are like it",
                    f"the loss of a micro-batch is {loss}; with what was there it is {other}",
                ),
                then=("the run goes on with another model than it was saved with",),
                remedy=Remedy(action="save-all", text="make it a persistent buffer, or build the model as it was"),
            )  # fmt: skip
        elif row.port == NOT_LOADED:
            yield replace(
                _at(row, window.rank), confidence="likely", param=None,
                title=f"{row.site} was not loaded: the checkpoint has it as {row.module}",
                why=(f"of {n} parameters the names in the checkpoint are others, and the shapes are equal",),
                then=("they begin as they were made",),
                remedy=Remedy(action="rename-keys", text="rename the keys of the checkpoint before loading it"),
            )  # fmt: skip


def _at(row: Reading, rank: int) -> Finding:
    return Finding(
        code="HC255", kind="config", severity="warning", title="", step=row.step, rank=rank, site=row.site,
        param=row.site, phase="param", source=row.source, cause="init-mismatch", confidence="proven",
    )  # fmt: skip
