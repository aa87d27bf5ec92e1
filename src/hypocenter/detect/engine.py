"""Run rules over rows. Rows come rank by rank or interleaved, but for each rank in order of steps.

A rule is one file in `rules/` whose module docstring is its manual page:

    @rule("HC101", "nonfinite", severity="error", reads=("nonfinite",))
    def check(window: Window) -> Iterator[Finding]: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

from hypocenter.catalogue import Catalogue
from hypocenter.detect.rank_series import RankSeries
from hypocenter.detect.window import History, Window
from hypocenter.errors import UnknownNameError
from hypocenter.manual import Manual, page_of
from hypocenter.nouns import KINDS, Finding, Reading, Severity, StepRecord

Check = Callable[[Window], Iterator[Finding]]
Reads = Literal[
    "nonfinite",
    "scalar",
    "scaler",
    "optimizer",
    "large-half",
    "zero",
    "half-grad",
    "near-limit",
    "imported",
    "batch",
    "all",
]  # fmt: skip
"""Which readings a rule looks at; what no rule looks at need not be read from disk. A reader may read more.

nonfinite    that hold a value that is not finite
scalar       of port value: loss, grad_norm, lr, loss_scale, clip_coef
scaler       of phase scaler
optimizer    of phase optimizer
large-half   in float16, with a value whose square does not fit
zero         whose values are all zero
half-grad    of backward or gradients, in float16, with their histogram
near-limit   near their format's largest number (`peaks.is_near_limit`)
batch        of phase data, with a digest
imported     of another tool's dump, which lack something
all          all of them
"""
Asked = Literal["always", "rows"]
"""When a rule is asked:

always    at every step of every rank
rows      at steps with a row that some rule reads, other than SCALARS that are finite and batches, and at those whose
          record is not that of a healthy step without a loss scaler: at others it finds nothing and remembers nothing
"""
Quiet = Callable[["RankSeries"], bool]
"""Whether a rule that is always asked can find nothing in what a rank recorded; then it is not asked there at all."""
SCALARS = ("loss", "grad_norm", "lr", "loss_scale", "clip_coef")
FRAMEWORKS = ("torch", "mindspore")  # mindspore: in PyNative
LARGE_HALF = 255.9  # its square is the largest float16: 65504, IEEE 754


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A rule: one file of the catalogue."""

    code: str
    kind: str
    severity: Severity
    reads: tuple[Reads, ...]
    check: Check
    not_in: Mapping[str, str] = field(default_factory=dict[str, str])  # of FRAMEWORKS -> why it cannot fire there
    asked: Asked = "always"
    quiet: Quiet | None = None

    @property
    def manual(self) -> Manual:
        """The manual page of the rule: the docstring of its file."""
        return page_of(self.check)


CATALOGUE: Catalogue[Rule] = Catalogue("hypocenter.detect.rules", "hypocenter.rules")


def rule(
    code: str,
    kind: str,
    *,
    severity: Severity,
    reads: tuple[Reads, ...] = ("nonfinite",),
    not_in: Mapping[str, str] = MappingProxyType({}),
    asked: Asked = "always",
    quiet: Quiet | None = None,
) -> Callable[[Check], Check]:
    """Return a decorator that registers a function as a rule.

    Args:
        code: unique; HC and three digits are ours, a third party uses letters of its own, such as ACME7.
        kind: of the closed vocabulary of kinds.
        severity: the worst that it reports; a finding may be milder.
        reads: the readings it needs beside step records, which all rules get.
        not_in: of FRAMEWORKS -> why no run of it can make the rule fire: one sentence for the page of the rules.
        asked: at which steps; a rule that looks at nothing but rows says "rows", and costs a healthy recording nothing.
        quiet: tells from columns that the rule has nothing to find in what a rank recorded.

    Raises:
        UnknownNameError: a kind or a word in `reads` that nobody knows, or a code that is taken.
    """
    if kind not in KINDS:
        raise UnknownNameError(f"{kind!r} is not a kind of finding", where=code, fix=f"use one of {', '.join(KINDS)}")
    if unknown := set(reads) - set(get_args(Reads)):
        raise UnknownNameError(f"{code} reads {sorted(unknown)}", where=code, fix=f"use {', '.join(get_args(Reads))}")
    return CATALOGUE.adding(
        code,
        lambda check: Rule(
            code=code, kind=kind, severity=severity, reads=reads, check=check, not_in=not_in, asked=asked, quiet=quiet
        ),
    )


def rules(plugins: Iterable[str] = ()) -> dict[str, Rule]:
    """Return all rules by code."""
    CATALOGUE.load(plugins)
    return CATALOGUE.entries()


class Engine:
    """Run rules, and keep what they need to know of the past.

    Args:
        selected: rules by code; all of the catalogue when not given.
    """

    def __init__(self, selected: Mapping[str, Rule] | None = None) -> None:
        self._selected = rules() if selected is None else selected
        self._rules = dict(self._selected)
        self._past: dict[int, History] = {}

    @property
    def reads(self) -> frozenset[Reads]:
        """What must be read from disk for these rules."""
        return frozenset(word for entry in self._rules.values() for word in entry.reads)

    def feed(
        self, rank: int, step: int, record: StepRecord | None = None, readings: Iterable[Reading] = ()
    ) -> list[Finding]:
        """Check one step of one rank. Never raises: a rule that fails is listed as broken and not asked again."""
        return self.ask(tuple(self._rules), rank, step, record, readings)

    @property
    def rules(self) -> Mapping[str, Rule]:
        """The rules that are still asked, by code."""
        return self._rules

    def pass_by(self, rank: int, records: Iterable[StepRecord]) -> None:
        """Remember the records of steps at which no rule has to be asked.

        Args:
            rank: whose.
            records: of these steps, in order; made when a rule looks back.
        """
        self._past.setdefault(rank, History()).pass_by(records)

    def forget(self, rank: int) -> None:
        """Forget a rank of which nothing more comes. A rule that failed there is asked again for the next rank."""
        self._past.pop(rank, None)
        self._rules = dict(self._selected)

    def ask(
        self, codes: Iterable[str], rank: int, step: int, record: StepRecord | None, readings: Iterable[Reading]
    ) -> list[Finding]:
        """Check one step as `feed` does, but with some rules only."""
        history = self._past.setdefault(rank, History())
        window = Window(rank=rank, step=step, record=record, readings=tuple(readings), history=history)
        found: list[Finding] = []
        for code in codes:
            if (entry := self._rules.get(code)) is None:
                continue
            try:
                found += entry.check(window)
            except Exception as error:  # a stranger's file must not take the others with it
                CATALOGUE.report(code, error)
                del self._rules[code]
        history.remember(window, is_healthy=window.loss_finite and window.grads_finite)
        return found
