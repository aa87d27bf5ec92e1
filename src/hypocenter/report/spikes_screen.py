"""The screen of `hypocenter spikes`: a line for each step that jumped."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from hypocenter.diagnose.numbers import listed, short
from hypocenter.diagnose.spike_list import Answer, Spike, place_of
from hypocenter.in_words import counted
from hypocenter.report import wording
from hypocenter.report.columns import aligned
from hypocenter.report.formats.terminal import to_text, wrapped
from hypocenter.report.screen import Screen

_COLUMNS = ("step", "rank", "what", "value", "usually", "cause", "where", "samples", "in the data set")


def render(found: Answer, screen: Screen | None = None) -> str:
    """Return the whole text, ready to print."""
    screen = screen or Screen()
    return to_text(_lines(found, screen.width), screen)


def _lines(found: Answer, width: int) -> Iterator[Text]:
    if not found.spikes:
        text = f"nothing jumped in {counted(found.steps, 'step')}"
        yield Text.assemble(("healthy: ", "bold green"), (text, "bold"))
        return
    proven = sum(spike.severity == "warning" for spike in found.spikes)
    head = f"{counted(len(found.spikes), 'step')} of {found.steps:,}; the origin of {proven} is proven"
    yield from wrapped(Text("jumped: ", "bold yellow"), Text(head, "bold"), width, indent=4)
    yield Text()
    rows = [_COLUMNS, *(tuple(map(wording.clean, _cells(spike))) for spike in found.spikes)]
    yield from map(Text, aligned(rows, right=frozenset({0, 1, 3, 4})))


def _cells(spike: Spike) -> tuple[str, ...]:
    return (
        str(spike.step), str(spike.rank), spike.of, short(spike.value), short(spike.usual), spike.cause or "not known",
        place_of(spike), listed(spike.samples) if spike.samples else "",
        listed(spike.dataset_indices) if spike.dataset_indices else "",
    )  # fmt: skip
