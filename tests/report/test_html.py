"""The report page as text: what it holds, how large it is."""

from __future__ import annotations

import json
import re

import numpy as np
import pyarrow as pa
import pytest
from report_fakes import FINDINGS, HOSTILE, OVERFLOW, FakeRecording, planted, reading

from hypocenter.nouns import Diagnosis, Finding, StepRecord, replace
from hypocenter.report.formats import html


class BigRecording(FakeRecording):
    """Columns made at once, for a recording too large to build from nouns."""

    def __init__(self, n_sites: int, n_steps: int) -> None:
        super().__init__(step_rows=[StepRecord(step=s, loss=1.0 / (s + 1)) for s in range(n_steps)])
        one_step = [(0, reading(f"layers.{i // 20}.part_{i % 20}.out", i, 1.0)) for i in range(n_sites)]
        rows = pa.concat_tables([FakeRecording(rows=one_step).table()] * n_steps)
        walk = np.cumsum(np.random.default_rng(0).normal(0, 0.3, (n_sites, n_steps)), axis=1)
        for name, values in (("step", np.repeat(np.arange(n_steps), n_sites)), ("absmax", np.exp(walk.T.ravel()))):
            rows = rows.set_column(rows.column_names.index(name), name, pa.array(values))
        self.rows_as_table = rows

    def table(self) -> pa.Table:
        return self.rows_as_table


def data_of(page: str) -> dict:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


@pytest.mark.night
def test_page_of_two_thousand_sites_and_a_thousand_steps_is_below_two_megabytes_and_complete() -> None:
    finding = replace(OVERFLOW, site="layers.50.part_3.out", step=990, rank=0, op=None)

    page = html.render(BigRecording(2000, 1000), Diagnosis(status="findings", findings=(finding,)))

    assert len(page.encode()) < 2_000_000
    (panel,) = data_of(page)["panels"]
    assert panel["about"] == "2,000 rows in execution order; steps 0 to 999; largest of all ranks and micro-batches"
    assert panel["marks"] == [[1003, 990]]


def test_page_that_would_be_too_large_says_what_was_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hypocenter.report.page.payload.RUN_BYTES", 40_000)
    finding = replace(OVERFLOW, site="layers.10.part_3.out", step=99, rank=0, op=None)

    (panel,) = data_of(html.render(BigRecording(500, 400), Diagnosis(findings=(finding,))))["panels"]

    assert len(panel["packed_codes"]) <= 40_000
    assert "500 sites are merged into" in panel["about"]
    assert "flagged in full" in panel["about"]
    assert len(panel["marks"]) == 1


def test_nothing_is_loaded_and_only_our_scripts_may_run() -> None:
    page = html.render(FakeRecording(rows=[(0, r) for r in planted(3)]), FINDINGS)

    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy
    assert policy[1].startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "unsafe" not in policy[1]
    assert not re.search(
        r"""(?:src|href)\s*=\s*["'](?!data:)""", re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    )


def test_data_cannot_end_its_script_element() -> None:
    rows = [(0, reading("</script><b>", 0, 1.0, step=1))]

    page = html.render(FakeRecording(rows=rows), Diagnosis(status="findings", findings=(HOSTILE,)))

    assert page.count("</script>") == 8
    assert data_of(page)["panels"]


def test_findings_beyond_fifty_are_counted() -> None:
    many: tuple[Finding, ...] = (OVERFLOW,) * 60

    page = html.render(FakeRecording(), Diagnosis(status="findings", findings=many))

    assert page.count('<article class="card error">') == 50
    assert "10 further findings not on this page, see diagnosis.json" in page
    assert "60 errors, 0 warnings, 0 notes" in page
