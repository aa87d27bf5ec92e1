"""Run rules over ranks: each sees one step of all ranks at a time, steps in rising order.

A rule is one file in `group_rules/` whose module docstring is its manual page:

    @group_rule("HC301", "desync", severity="error", reads=("digest",))
    def check(panel: Panel) -> Iterator[Finding]: ...

One that is about how the ranks ended takes the whole job instead, once: `@end_rule("HC321", ...)` over a Job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from hypocenter.catalogue import Catalogue
from hypocenter.detect.endings import Job
from hypocenter.detect.panel import Panel
from hypocenter.errors import UnknownNameError
from hypocenter.manual import Manual, page_of
from hypocenter.nouns import KINDS, Finding, Severity

GroupCheck = Callable[[Panel], Iterator[Finding]]
EndCheck = Callable[[Job], Iterator[Finding]]
GroupReads = Literal["digest", "comm", "grad", "local", "data", "scalar", "misuse", "sdc", "law"]
"""Which readings a rule over ranks looks at:

digest    those that carry a digest
comm      of phase comm: what went into and came out of collectives
grad      local norms of gradients as the optimizer sees them (phase grad, port grad)
local     gradients before they were reduced over ranks, and right after (phase grad, port grad_local, grad_reduced)
data      of phase data: random states and batches
scalar    loss, grad_norm, lr, loss_scale, clip_coef (one element, port value)
misuse    facts about how the program trains (site misuse.*)
sdc       what came of doing micro-batches again (site sdc)
law       sketches of gradients, as they are used and as replays give them (port grad_made, grad_used)
"""

Asked = Literal["always", "rows", "unlike"]
"""When a rule over ranks is asked:

always  at every step, of all ranks
rows    at the first step, and at those with rows of comm, sdc, law or of reduced gradients: at others it finds nothing
unlike  at every step, of ranks in groups that are not as alike as they should be: of others (job_sketch.JobSketch) it
        finds nothing, whichever they are
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRule:
    """A rule over ranks: one file of the catalogue."""

    code: str
    kind: str
    severity: Severity
    reads: tuple[GroupReads, ...] = ()
    check: GroupCheck | None = None
    end: EndCheck | None = None  # in place of `check`
    is_alone: bool = False  # asked of a recording of one rank too
    asked: Asked = "always"
    beside: str = ""  # code of another rule, which follows the same things step by step: whoever asks it asks both

    @property
    def manual(self) -> Manual:
        """The manual page of the rule: the docstring of its file."""
        function = self.check or self.end
        assert function is not None
        return page_of(function)


CATALOGUE: Catalogue[GroupRule] = Catalogue("hypocenter.detect.group_rules", "hypocenter.group_rules")


def group_rule(
    code: str,
    kind: str,
    *,
    severity: Severity,
    reads: tuple[GroupReads, ...],
    alone: bool = False,
    asked: Asked = "always",
    beside: str = "",
) -> Callable[[GroupCheck], GroupCheck]:
    """Return a decorator that registers a function as a rule over ranks; arguments as of `detect.engine.rule`.

    Args:
        alone: it has something to say of a recording of one rank too.
        asked: of which ranks, and at which steps.
        beside: a rule that looks at what this one looks at, which is worked out once where both are asked together.

    Raises:
        UnknownNameError: a kind or a word in `reads` that nobody knows, or a code that is taken.
    """
    if kind not in KINDS:
        raise UnknownNameError(f"{kind!r} is not a kind of finding", where=code, fix=f"use one of {', '.join(KINDS)}")
    if unknown := set(reads) - set(get_args(GroupReads)):
        words = ", ".join(get_args(GroupReads))
        raise UnknownNameError(f"{code} reads {sorted(unknown)}", where=code, fix=f"use {words}")
    return CATALOGUE.adding(
        code,
        lambda check: GroupRule(
            code=code, kind=kind, severity=severity, reads=reads, check=check, is_alone=alone, asked=asked,
            beside=beside,
        ),
    )  # fmt: skip


def end_rule(code: str, kind: str, *, severity: Severity, alone: bool = False) -> Callable[[EndCheck], EndCheck]:
    """Return a decorator for a function that sees the whole job once, and where each rank was last."""
    if kind not in KINDS:
        raise UnknownNameError(f"{kind!r} is not a kind of finding", where=code, fix=f"use one of {', '.join(KINDS)}")
    return CATALOGUE.adding(
        code, lambda check: GroupRule(code=code, kind=kind, severity=severity, end=check, is_alone=alone)
    )


def group_rules(plugins: Iterable[str] = ()) -> dict[str, GroupRule]:
    """Return all rules over ranks, by code."""
    CATALOGUE.load(plugins)
    return CATALOGUE.entries()


class GroupEngine:
    """Run rules over ranks.

    Args:
        selected: rules by code; all of the catalogue when not given.
        n_ranks: of the recording: one alone is asked of those rules only that can say something of it.
    """

    def __init__(self, selected: Mapping[str, GroupRule] | None = None, n_ranks: int = 2) -> None:
        chosen = group_rules() if selected is None else selected
        self._rules = {code: entry for code, entry in chosen.items() if n_ranks > 1 or entry.is_alone}

    @property
    def reads(self) -> frozenset[GroupReads]:
        """What must be read from disk for these rules."""
        return frozenset(word for entry in self._rules.values() for word in entry.reads)

    @property
    def rules(self) -> Mapping[str, GroupRule]:
        """The rules that are still asked, by code."""
        return self._rules

    def feed(self, panel: Panel) -> list[Finding]:
        """Check one step of ranks. Never raises: a rule that fails is listed as broken and not asked again."""
        return self._each(lambda rule: rule.check(panel) if rule.check is not None else ())

    def end(self, job: Job) -> list[Finding]:
        """Check how the ranks ended. Never raises, as `feed`."""
        return self._each(lambda rule: rule.end(job) if rule.end is not None else ())

    def _each(self, ask: Callable[[GroupRule], Iterable[Finding]]) -> list[Finding]:
        found: list[Finding] = []
        for code, entry in list(self._rules.items()):
            try:
                found += ask(entry)
            except Exception as error:  # a stranger's file must not take the others with it
                CATALOGUE.report(code, error)
                del self._rules[code]
        return found
