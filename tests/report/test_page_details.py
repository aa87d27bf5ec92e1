"""What a page tells of a finding beside its words."""

from __future__ import annotations

from pathlib import Path

import pytest
from report_fakes import OVERFLOW, FakeRecording, reading

from hypocenter.diagnose.evidence import Alternative, Cure, Evidence, OpFacts, TensorFacts
from hypocenter.nouns import Source, Summary, replace
from hypocenter.report.page.details import Details, around, classes_of, details_of

LINES = "class A:\n    def f(x):\n        # why\n        y = x\n        z = y / 0\n        return z\n\nA()\n"


def source(folder: Path, name: str = "model.py", line: int = 5, text: str = "z = y / 0") -> Source:
    (folder / name).write_text(LINES)
    return Source(file=str(folder / name), line=line, text=text)


def test_three_lines_before_and_after_without_their_common_indent(tmp_path: Path) -> None:
    before, after, indent = around(source(tmp_path))

    assert before == ("    def f(x):", "        # why", "        y = x")
    assert after == ("        return z", "", "A()")
    assert indent == 8
    assert around(source(tmp_path, line=4, text="y = x"))[0][0] == "class A:"


@pytest.mark.parametrize(
    "changed",
    [{"name": "passwords.txt"}, {"line": 6}, {"line": 99}, {"text": "z = y"}, {"text": " "}],
    ids=lambda changed: str(next(iter(changed.items()))),
)
def test_a_file_that_is_no_python_or_has_changed_is_not_shown(tmp_path: Path, changed: dict) -> None:
    assert around(source(tmp_path, **changed)) == ((), (), 0)


def test_a_file_that_is_gone_or_a_folder_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "folder.py").mkdir()

    for name in ("gone.py", "folder.py"):
        assert around(Source(file=str(tmp_path / name), line=1, text="x")) == ((), (), 0)


def test_modules_around_it_with_their_classes_as_far_as_known() -> None:
    rows = [
        (0, reading(site, n, 1.0, module=name))
        for n, (site, name) in enumerate({"": "T5", "block.0": "T5Block", "block.0.wo": "Linear"}.items())
    ]
    classes = classes_of(FakeRecording(rows=rows).table())

    found = details_of(replace(OVERFLOW, site="block.0.wo", source=None), None, classes)

    assert found.inside == ("T5", "block.0 (T5Block)", "block.0.wo (Linear)")
    assert details_of(replace(OVERFLOW, site="loss", source=None), None, classes) == Details()


def test_tensors_and_the_cure_come_from_the_evidence() -> None:
    bad = TensorFacts(
        name="out[0]", dtype="float16", shape=(2, 3), summary=Summary(n=6, n_hist=6, n_posinf=1, absmax=9.0)
    )
    cure = Cure(status="cured", patch="--- a/m.py\n+++ b/m.py\n@@ -1 +1 @@\n-a\n+b\n c", patch_verified=True,
                alternatives=(Alternative(action="fp32-island", verified=True, cost=1.5),))  # fmt: skip
    evidence = Evidence(
        origin=OpFacts(index=0, op="aten.mul.Tensor", phase="forward", site="a", outputs=(bad,)), cure=cure
    )

    found = details_of(replace(OVERFLOW, source=None), evidence, {})

    assert [(line.name, line.shape, line.chips) for line in found.tensors] == [("out[0]", "2×3", ("+inf ×1",))]
    assert [kind for kind, _ in found.patch] == ["place", "place", "place", "removed", "added", ""]
    assert found.patch_note.startswith("the step was replayed with it and is finite")
    assert found.tried[1][:3] == ("fp32-island", "yes", "1.50×")
    assert details_of(replace(OVERFLOW, source=None, cause="log-of-zero"), evidence, {}).tried == ()
