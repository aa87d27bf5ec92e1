"""record/site_table.py: of each site the latest reading and the worst it ever was, norms looked at only when needed."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator

from hypocenter.nouns import Reading, Summary
from hypocenter.record.all_rows import AllRows
from hypocenter.record.norm_rows import NormRows, NormTemplate
from hypocenter.record.site_table import COLUMNS, SiteTable


def row(site: str, port: str = "out[0]", *, step: int = 0, absmax: float = 1.0, n_nan: int = 0) -> Reading:
    summary = Summary(n=4, n_nan=n_nan, absmax=absmax, min=-absmax, max=absmax, sumsq=4.0)
    return Reading(step=step, microbatch=0, phase="forward", site=site, port=port, order=0, summary=summary)


def test_the_latest_and_the_worst_are_kept() -> None:
    table = SiteTable()
    table.take([row("wi", step=0, absmax=9.0, n_nan=2), row("loss", "value")])
    table.take([row("wi", step=1, absmax=3.0), row("wo", step=1)])

    found = [dict(zip(COLUMNS, cells, strict=True)) for cells in table.rows()]
    assert [(r["site"], r["step"], r["absmax"], r["largest"], r["n_bad"]) for r in found] == [
        ("wi", 1, 3.0, 9.0, 2), ("wo", 1, 1.0, 1.0, 0),
    ]  # fmt: skip
    assert next(csv.DictReader(io.StringIO(table.csv())))["site"] == "wi"


class Seen(NormRows):
    """Norms that know how often they became rows."""

    n = 0

    def __iter__(self) -> Iterator[Reading]:
        self.n += 1
        return super().__iter__()


def test_finite_norms_become_rows_once_at_the_end_and_bad_ones_count() -> None:
    parameter = Reading(step=0, microbatch=0, phase="grad", site="w", port="grad", order=0, summary=Summary(n=4))
    template = NormTemplate([parameter])
    norms = [
        Seen(template, step=step, first_order=0, norms=[2.0 + step], bad=frozenset([0] if step == 1 else ()))
        for step in range(4)
    ]
    table = SiteTable()

    for each in norms:
        table.take(AllRows([row("wi")], each))
    rows = {cells[1]: dict(zip(COLUMNS, cells, strict=True)) for cells in table.rows()}

    assert [each.n for each in norms] == [0, 1, 0, 1]
    assert (rows["w"]["step"], rows["w"]["rms"], rows["w"]["n_bad"], rows["w"]["absmax"]) == (3, 2.5, 1, None)


def test_all_rows_are_one_sequence() -> None:
    template = NormTemplate([row("a", "grad"), row("b", "grad")])
    norms = NormRows(template, step=0, first_order=5, norms=[1.0, 2.0], bad=frozenset())
    rows = AllRows([row("wi")], norms)

    assert [each.site for each in rows] == ["wi", "a", "b"]
    assert (len(rows), rows[-1].site, rows[0].site, [r.site for r in rows[1:]]) == (3, "b", "wi", ["a", "b"])
    assert list(AllRows([row("wi")], None)) == [row("wi")]
