"""The screen of `hypocenter cure`: what to change, how that is known, the diff, and what else was tried."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hypocenter.diagnose.cure import Answer
from hypocenter.diagnose.evidence import Alternative
from hypocenter.report import wording
from hypocenter.report.columns import aligned
from hypocenter.report.formats.terminal import to_text, wrapped
from hypocenter.report.screen import Screen

_HEADS = {
    "cured": ("cured", "bold green"),
    "no-cure": ("no cure", "bold red"),
    "cannot-tell": ("cannot tell", "bold yellow"),
}
HEADING = ("tried", "finite", "time", "parameters", "error", "why not")
_FRAME, _PATH, _TYPE_THIS = "blue", "cyan", "green"
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


def render(found: Answer, screen: Screen | None = None) -> str:
    """Return the whole text, ready to print."""
    screen = screen or Screen()
    return to_text(_lines(found, screen.width), screen)


def _lines(found: Answer, width: int) -> Iterator[Text]:
    name, style = _HEADS[found.status]
    yield from wrapped(Text(f"{name}: ", style), Text(_headline(found), "bold"), width, indent=4)
    if found.step is not None:
        place = f"step {found.step}, rank {found.rank}: {wording.sentence(found.title)}"
        yield from wrapped(Text("   --> ", _FRAME), Text(place, _PATH), width)
    for label, text in _points(found):
        label_text = Text.assemble(("    = ", _FRAME), (f"{label}: ", "bold"))
        yield from wrapped(label_text, Text(text), width)
    for line in found.api.splitlines():  # never wrapped: it must survive copy and paste
        yield Text.assemble(("    = ", _FRAME), ("apply: ", "bold"), (wording.clean(line, 2000), _TYPE_THIS))
    if found.patch_note:
        yield from wrapped(Text("    = note: ", _FRAME), Text(wording.sentence(found.patch_note)), width)
    if found.patch:
        how = "replayed with it: finite" if found.patch_verified else "not replayed"
        yield from [Text(), Text(f"or in your source ({how}; read it before you apply it):"), Text()]
        for line in found.patch.splitlines():
            yield Text(wording.clean(line, 1000), _DIFF_STYLES.get(line[:1], ""))
    if found.alternatives:
        yield from [Text(), *_table(found.alternatives, width)]


def _headline(found: Answer) -> str:
    if found.status != "cured":
        return wording.sentence(found.why[0]) if found.why else "nothing is known"
    where = ", ".join(wording.clean(target) or "the whole model" for target in found.targets)
    return f"run {where} in float32" + ("" if found.cast_back else ", and leave the result in float32")


def _points(found: Answer) -> Iterator[tuple[str, str]]:
    if found.verified:
        yield "verified", _verified(found)
    if found.replays:
        yield "searched", _searched(found)
    for op in map(wording.clean, found.ops[:1]):
        yield "smaller", f'{op.rpartition(":")[2]} alone is enough: name it as "{op}" in place of the module'
    for source in found.lines[:1]:
        yield "line", f"{wording.source_place(source)} alone in float32 is enough: {wording.clean(source.text)}"
    for reason in found.why[0 if found.status == "cured" else 1 :]:
        yield "why", wording.sentence(reason)
    if found.cause and found.cause != "unknown":
        yield "cause", wording.clean(found.cause)
    if found.advice:
        yield "instead", wording.sentence(found.advice)


def _verified(found: Answer) -> str:
    batches = f" in all {found.microbatches} micro-batches" if found.microbatches > 1 else ""
    scale = f", at loss scale {found.loss_scale:,.6g}" if found.loss_scale is not None else ""
    gradients = f"loss and all {found.parameters:,} gradients finite"
    return f"step {found.step} was replayed with it: {gradients}{batches}{scale}"


def _searched(found: Answer) -> str:
    replays, modules = wording.count(found.replays, "replay"), wording.count(found.candidates, "module")
    smallest = "; without any one of them it is not finite" if found.minimal and len(found.targets) > 1 else ""
    return f"{replays} among {modules}, {found.seconds:.1f} s{smallest}"


def _table(alternatives: tuple[Alternative, ...], width: int) -> Iterator[Text]:
    rows = [HEADING, *map(row, alternatives)]
    lines = list(aligned(rows, right=frozenset({2, 3, 4})))
    yield from (Text(line, "bold" if n == 0 else "") for n, line in enumerate(lines))
    legend = "time: of the replayed step, against that without; parameters: share of the model's that it changes"
    yield from wrapped(Text(), Text(f"{legend}; error: of all gradients, against a float64 replay", "dim"), width)
    for tried in alternatives[1:]:
        if tried.verified:
            name = Text(f"{wording.clean(tried.action)}: ", "bold")
            yield from wrapped(name, Text(wording.sentence(tried.text)), width, indent=4)


def row(tried: Alternative) -> tuple[str, ...]:
    """Return what was tried, in the columns of HEADING."""
    scale = f" {wording.clean(tried.targets[0])}" if tried.action == "lower-scale" and tried.targets else ""
    return (
        f"{wording.clean(tried.action)}{scale}",
        "yes" if tried.verified else "no",
        f"{tried.cost:.2f}×" if tried.cost is not None else "",
        f"{tried.share:.1%}" if tried.share is not None else "",
        f"{tried.error:.1e}" if tried.error is not None else "",
        "" if tried.verified else wording.sentence(tried.why_not),
    )
