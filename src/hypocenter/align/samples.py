"""What stands in the batch of a step, decoded."""

from __future__ import annotations

from hypocenter.align.context import Context
from hypocenter.checklist.data.side import batches_of_step
from hypocenter.checklist.data.tokenizer import open_tokenizer
from hypocenter.errors import HypocenterError

_SAMPLES, _TOKENS = 3, 48  # shown


def samples_at(context: Context, step: int) -> list[str]:
    """The first samples of the baseline's batch of a step, a line each; why not, where it cannot be done."""
    try:
        tokenizer = open_tokenizer(context.plan.folder / context.plan.stages.tokenizer)
        batches = batches_of_step(context.run("baseline", f"batches-{step}"), step)
    except HypocenterError as error:
        return [f"the batch of step {step} cannot be shown: {error.what}"]
    lines: list[str] = []
    for batch in batches[:1]:
        for number, ids in enumerate(batch.ids[:_SAMPLES].tolist()):
            shown = ids[:_TOKENS]
            text = tokenizer.decode(shown)
            words = " ".join(map(str, shown)) if text is None else repr(text)
            lines.append(f"step {step}, sample {number}: {words}{' ...' if len(ids) > len(shown) else ''}")
    return lines or [f"the batch of step {step} holds no matrix of tokens"]
