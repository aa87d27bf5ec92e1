"""A finding in Markdown, as other tools show it: what, where, cause, fix, why."""

from __future__ import annotations

from collections.abc import Iterator

from hypocenter.nouns import Finding


def heading(finding: Finding) -> str:
    """Return the heading of a finding: `error[HC101]: the product overflowed float16`."""
    return f"{finding.severity}[{finding.code}]: {finding.title}"


def markdown(finding: Finding) -> str:
    """Return a heading and a list; what a program or a file wrote is put as code, as it may hold anything."""
    lines = [f"- **{label}**: {text}" for label, text in _points(finding)]
    return "\n".join([f"**{heading(finding)}**", "", *lines])


def _points(finding: Finding) -> Iterator[tuple[str, str]]:
    place = [f"step {finding.step}", f"rank {finding.rank}"]
    if finding.site is not None:
        place.append(_code(finding.site or "the model"))
    if finding.source is not None:
        place.append(_code(f"{finding.source.file}:{finding.source.line}"))
    yield "where", ", ".join(place)
    if finding.cause != "unknown":
        yield "cause", f"{finding.cause} ({finding.confidence})"
    if finding.remedy is not None and finding.remedy.text:
        proven = " (a replay with it was finite)" if finding.remedy.verified else ""
        yield "fix", f"{_code(finding.remedy.text)}{proven}"
    yield from (("why", _code(reason)) for reason in finding.why)
    yield from (("then", _code(what)) for what in finding.then)


def _code(text: str) -> str:
    """Return one line of Markdown code, whatever backticks the text holds."""
    flat = " ".join(text.split())
    longest = max((len(run) for run in "".join(c if c == "`" else " " for c in flat).split()), default=0)
    return (
        f"`` {flat} ``"
        if longest == 1
        else f"{'`' * (longest + 1)} {flat} {'`' * (longest + 1)}"
        if longest
        else f"`{flat}`"
    )
