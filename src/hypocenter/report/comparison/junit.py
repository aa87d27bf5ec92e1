"""JUnit XML, as CI systems read it: one test case per phase of a step, and one for the verdict."""

from __future__ import annotations

from xml.etree.ElementTree import Element, SubElement

from hypocenter.compare.comparison import STAGES, Comparison, RowComparison
from hypocenter.compare.sentences import place, power
from hypocenter.report import wording
from hypocenter.report.ci import junit, xml_text
from hypocenter.report.comparison.ranking import ranked, times, unmatched_sites

suffix = ".xml"

_ROWS = 20  # of a phase that are named


def render(found: Comparison) -> str:
    """Return one suite; what cannot be told is an `error`, never a pass, a difference is a failure of its phase."""
    suite = Element("testsuite", name="hypocenter diff")
    _verdict(suite, found)
    rows = ranked(found)
    for phase in STAGES:
        mine = [row for row in rows if row.pair.baseline[0].phase == phase]
        if mine:
            _phase(suite, phase, mine)
    return junit(suite)


def _verdict(suite: Element, found: Comparison) -> None:
    case = SubElement(suite, "testcase", classname="hypocenter.diff", name="verdict")
    tag = {"diverged": "failure", "cannot-tell": "error"}.get(found.status)
    lines = [found.sentence, *(f"why: {reason}" for reason in found.why)]
    lines += [f"cause: {found.cause} ({found.confidence})"] if found.cause is not None else []
    for side, cards in (
        ("baseline", found.matching.unmatched_baseline),
        ("candidate", found.matching.unmatched_candidate),
    ):
        if cards:
            names = ", ".join(place(site) for site, _ in list(unmatched_sites(cards))[:_ROWS])
            lines.append(f"without counterpart, of the {side}: {wording.count(len(cards), 'spot')} of {names}")
    attributes = {} if tag is None else {"type": found.status, "message": xml_text(found.sentence)}
    SubElement(case, tag or "system-out", attributes).text = xml_text("\n".join(lines))


def _phase(suite: Element, phase: str, rows: list[RowComparison]) -> None:
    case = SubElement(suite, "testcase", classname="hypocenter.diff", name=phase)
    for verdict, tag in (("differs", "failure"), ("cannot-tell", "error")):
        bad = [row for row in rows if row.verdict == verdict]
        if bad:
            more = [f"and {len(bad) - _ROWS:,} more, see them with --json"] if len(bad) > _ROWS else []
            message = f"{len(bad):,} of {wording.count(len(rows), 'row')}: {verdict}; {_row(bad[0])}"
            body = "\n".join([*map(_row, bad[:_ROWS]), *more])
            SubElement(case, tag, {"type": verdict, "message": xml_text(message)}).text = xml_text(body)
            return
    SubElement(case, "system-out").text = f"{wording.count(len(rows), 'row')} equal or within noise"


def _row(row: RowComparison) -> str:
    spot = row.pair.baseline[0]
    error = power(row.distance.relative) if row.distance is not None else "?"
    floor = power(row.floor.relative)
    return f"step {row.step}: {place(spot.site, spot.port)} error {error}, floor {floor} ({times(row):.3g} times)"
