"""Names that were one parameter are two, or two that were apart are one.

What it means
    A tied weight (the head of a language model that is its embedding, a layer that is used at several places) was one
    parameter, and is two copies now, which are trained apart from here on. A model was built anew or loaded in
    mid-run, and what made the tie was not done again, or `load_state_dict(assign=True)` or a new `nn.Parameter` has
    undone it. Or a model says that it is tied (`tie_word_embeddings` of a config of transformers) and is not: its head
    or its embedding was replaced. It is trained as another model than it is saved as, loaded as, and said to be.
    Or the other way about: a model that nothing trains (a target network, a teacher, a snapshot) has come to lie in the
    memory of the one that is trained, because `t.data = p.data` copies nothing, and moves with it at each update.

How it is decided
    Which names are one parameter is noted at the first update of each optimizer, and looked at when another one makes
    its first: two names that were one, are two trained parameters now, and hold the same values, bit for bit, that are
    near (half of their norm) what the one had at steps 0, 1, 2, 4, ... What a model of transformers (version 5 and
    later) lists as tied (`all_tied_weights_keys`: by its config, and without what it was loaded untied) is compared at
    the first update of each optimizer: two names of it are two trained parameters of one shape in this optimizer. A
    note where it may be meant: one of the two names still is the parameter that both were, or a truth value that the
    model or its config holds is another one. Memory is compared at every fourth step up to 128, later rarer: a
    parameter that no optimizer updates, seen in a memory of its own before, lies at two looks in that of a trained one.

What to do
    Tie them again after loading and before the optimizer is made (`head.weight = embedding.weight`, `tie_weights()`).
    Grow a vocabulary with `resize_token_embeddings`. Where two are meant, say so: `tie_word_embeddings=False`. Refresh
    a copy with `load_state_dict` or `copy_`.

When it is wrong
    Where a model is trained tied first and is built anew, untied on purpose, later in the same run, and none of its
    attributes says so. Runs that go on in another process are not compared. Where a model for evaluation is meant to
    share the memory of the trained one from the middle of a run on.
"""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.detect.engine import rule
from hypocenter.detect.law_rows import JOINED, MEANT, SAID, UNTIED
from hypocenter.detect.window import Window
from hypocenter.nouns import Finding, Reading, Remedy


@rule("HC265", "desync", severity="warning", reads=("optimizer",), asked="rows")
def check(window: Window) -> Iterator[Finding]:
    """Fire at the first update of what is untied."""
    for row in window.by_phase["optimizer"]:
        if row.port == JOINED:
            yield _of_joined(window, row)
        elif row.port == UNTIED:
            n, one = round(row.summary.sum), row.names[0] if row.names else ""
            more = (f"the same for {n - 1} more",) if n > 1 else ()
            is_said = row.module == SAID
            why = (
                "the model lists them as tied, by its config; its optimizer holds two of the same shape" if is_said else
                f"they were one at the first update of the optimizer of step {row.call}; this one holds two with the "
                "same values"
            )  # fmt: skip
            if row.module == MEANT:
                more = (*more, "one of them was replaced alone, or the model made with another flag: it may be meant")
            apart = f"{row.site} and {one} were one parameter, and are two"
            title = f"{row.site} is said to be {one}, and is not" if is_said else apart
            yield Finding(
                code="HC265", kind="desync", severity="note" if row.module == MEANT else "warning",
                step=row.step, rank=window.rank, phase="optimizer",
                site=row.site, param=row.site, confidence="proven",
                cause="program-error" if is_said else "state-changed", title=title, why=(why, *more),
                then=("each is trained with its own part of the gradient: they go apart",),
                remedy=Remedy(action="tie-again", text="tie them again before the optimizer is made"),
            )  # fmt: skip


def _of_joined(window: Window, row: Reading) -> Finding:
    n, (one, apart) = round(row.summary.sum), (*row.names, "", "")[:2]
    others = f", and {n - 1} more lie in those of others like it" if n > 1 else ""
    return Finding(
        code="HC265", kind="desync", severity="warning", step=row.step - row.call, rank=window.rank, phase="optimizer",
        site=row.site, param=row.site, confidence="proven", cause="program-error",
        title=f"{row.site} has come to be {one}, in one memory",
        why=(f"it lay in a memory of its own at step {apart}, and since then in that of {one}{others}",),
        then=("what is meant to stay as it is moves at each update",),
        remedy=Remedy(action="copy", text="copy the values: load_state_dict, or t.data.copy_(p.data)"),
    )  # fmt: skip
