"""The screen of `hypocenter align`: the answer, the ladder of stages, the one that failed as a finding."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hypocenter.align.alignment import Alignment, StageResult
from hypocenter.report import wording
from hypocenter.report.formats.terminal import to_text, wrapped
from hypocenter.report.screen import Screen

MARKS = {"passed": "✓", "failed": "✗", "cannot-tell": "?", "skipped": "–", "not-run": "·"}
WORDS = {
    "passed": "passed",
    "failed": "failed",
    "cannot-tell": "cannot tell",
    "skipped": "skipped",
    "not-run": "not done",
}
_STYLES = {"passed": "green", "failed": "bold red", "cannot-tell": "yellow", "skipped": "dim", "not-run": "dim"}
_STATUS = {"aligned": "bold green", "stopped": "bold red", "cannot-tell": "bold yellow"}
_FRAME, _PATH, _TYPE_THIS = "blue", "cyan", "green"
_EXPANDED = ("failed", "cannot-tell")
_COMMANDS = ("hypocenter ", "[", "python ", "torchrun ")


def render(found: Alignment, screen: Screen | None = None) -> str:
    """Return the whole text, ready to print."""
    screen = screen or Screen()
    return to_text(_lines(found, screen.width), screen)


def _lines(found: Alignment, width: int) -> Iterator[Text]:
    text = wording.sentence(found.sentence)
    n_words = 2 if text.startswith("cannot ") else 1
    head, rest = " ".join(text.split(" ")[:n_words]), " ".join(text.split(" ")[n_words:])
    yield from wrapped(Text(f"{head} ", _STATUS[found.status]), Text(rest, "bold"), width, indent=4)
    yield Text()
    for stage in found.stages:
        yield from _stage(stage, width)
    for note in found.notes:
        yield from wrapped(Text("note: ", "cyan"), Text(wording.sentence(note)), width)


def _stage(stage: StageResult, width: int) -> Iterator[Text]:
    style = _STYLES[stage.verdict]
    label = Text.assemble(
        (f"{MARKS[stage.verdict]} ", style), f"{stage.stage} {stage.name:<12}", (f"{WORDS[stage.verdict]:<12}", style)
    )
    if not stage.sentence:
        label.rstrip()
    body = Text(wording.sentence(stage.sentence), "dim" if stage.verdict in ("skipped", "not-run") else "")
    yield from wrapped(label, body, width)
    if stage.verdict in _EXPANDED:
        yield from _expanded(stage, width)


def _expanded(stage: StageResult, width: int) -> Iterator[Text]:
    if place := where(stage):
        yield Text.assemble(("    --> ", _FRAME), (wording.clean(place), _PATH))
    if stage.cause:
        certain = f" ({stage.confidence})" if stage.confidence and stage.cause != "unknown" else ""
        yield from wrapped(_label("cause"), Text(f"{stage.cause}{certain}", "bold"), width)
    for line in stage.next:
        if line.startswith(_COMMANDS):
            yield _label("next") + Text(wording.clean(line, 1000), _TYPE_THIS)  # a command survives copy and paste
        else:
            yield from wrapped(_label("next"), Text(wording.sentence(line)), width)
    for reason in stage.why:
        yield from wrapped(_label("why"), Text(wording.sentence(reason)), width)


def where(stage: StageResult) -> str:
    """Return the place to blame, `tokens.weight at step 0 (grad)`; empty when nothing is to blame."""
    if stage.site is None and stage.step is None:
        return ""
    site = "the model itself" if stage.site == "" else stage.site or ""
    step = f"at step {stage.step}" if stage.step is not None else ""
    phase = f"({stage.phase})" if stage.phase else ""
    return " ".join(part for part in (site, step, phase) if part)


def _label(name: str) -> Text:
    return Text.assemble(("     = ", _FRAME), (f"{name}: ", "bold"))
