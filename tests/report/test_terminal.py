"""The screen of `hypocenter check`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from report_fakes import CANNOT_TELL, FINDINGS, HEALTHY, HOSTILE, OVERFLOW, FakeRecording
from rich.cells import cell_len
from rich.text import Text

from hypocenter.nouns import Diagnosis, Finding, Remedy, Source, replace
from hypocenter.report import wording
from hypocenter.report.formats import terminal
from hypocenter.report.screen import Screen


@pytest.mark.parametrize("width", [60, 80, 100])
def test_screen_looks_as_the_gold_file_says(width: int, same_as_gold: Callable[[str, str], None]) -> None:
    text = terminal.render(FakeRecording(), FINDINGS, screen=Screen(width=width), seconds=0.4)

    same_as_gold(f"terminal-{width}.txt", text)


def test_healthy_run_ends_with_the_next_command() -> None:
    text = terminal.render(FakeRecording(), HEALTHY)

    assert text == (
        "healthy: nothing at or above warning\n"
        "0 errors, 0 warnings in 13 steps, 1 rank, 120 sites (read 1,560 rows)\n"
        "sites: hypocenter show runs/0412\n"
    )


def test_cannot_tell_says_why_and_is_not_called_healthy() -> None:
    text = terminal.render(FakeRecording(), CANNOT_TELL)

    assert text.startswith("cannot tell: no step was completed; rank 3 wrote no rows\n")
    assert "healthy" not in text


def test_notes_are_counted_until_they_are_asked_for() -> None:
    hidden = terminal.render(FakeRecording(), FINDINGS)
    shown = terminal.render(FakeRecording(), FINDINGS, notes=True)

    assert "1 note hidden, show with --notes" in hidden
    assert "note[HC900]" not in hidden
    assert "note[HC900]: the recording stops before the run did" in shown
    assert "note hidden" not in shown


def test_a_hidden_note_that_is_proven_is_named() -> None:
    (note,) = (f for f in FINDINGS.findings if f.severity == "note")
    proven = replace(note, confidence="proven", title="the parameter gets no gradient any more")

    hidden = terminal.render(FakeRecording(), replace(FINDINGS, findings=(proven, proven, note)))

    assert "3 notes hidden, show with --notes; proven: the parameter gets no gradient any more and 1 more" in hidden


@pytest.mark.parametrize("width", [40, 60, 77, 120])
def test_only_commands_and_single_words_are_wider_than_the_screen(width: int) -> None:
    text = terminal.render(FakeRecording(), FINDINGS, screen=Screen(width=width))

    wide = [line for line in text.splitlines() if cell_len(line) > width and "hypocenter " not in line]
    assert all("--> " in line or len(line.split()) == 1 for line in wide), wide


@pytest.mark.parametrize("width", [40, 100])
def test_a_path_stays_in_one_piece_whatever_stands_before_it(width: int) -> None:
    path = "/tmp/" + "a-long-name/" * 12 + "run"

    lines = [str(line) for line in terminal.wrapped(Text("note: "), Text(f"wrote 1 KiB to {path}, and left"), width)]

    assert f"      {path}," in lines
    assert " ".join(line.strip() for line in lines) == f"note: wrote 1 KiB to {path}, and left"
    assert all(cell_len(line) <= width for line in lines if path not in line)


def test_colour_changes_no_word() -> None:
    import re

    plain = terminal.render(FakeRecording(), FINDINGS, notes=True, screen=Screen(colour=False))
    coloured = terminal.render(FakeRecording(), FINDINGS, notes=True, screen=Screen(colour=True))

    assert "\x1b[" in coloured
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_hostile_names_write_no_escape_sequence_and_no_direction_mark() -> None:
    text = terminal.render(FakeRecording(), Diagnosis(status="findings", findings=(HOSTILE,)))

    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "(8,000 more characters)" in text


def test_no_word_of_a_long_sentence_is_lost_in_wrapping() -> None:
    why = " ".join(f"word{i}" for i in range(80))

    text = terminal.render(
        FakeRecording(), Diagnosis(findings=(replace(OVERFLOW, why=(why,)),)), screen=Screen(width=50)
    )

    assert " ".join(text.split()).count("word") == 80


def test_long_source_line_is_shown_around_the_carets() -> None:
    long = "x = [" + "0, " * 200 + "torch.exp(y), " + "0, " * 200 + "]"
    finding: Finding = replace(OVERFLOW, op="aten.exp.default", source=Source(file="a.py", line=7, text=long))

    text = terminal.render(FakeRecording(), Diagnosis(findings=(finding,)), screen=Screen(width=80))

    source, carets = [line for line in text.splitlines() if line.startswith(("7 | ", "  | "))][:2]
    start, stop = carets.index("^"), carets.rindex("^") + 1
    assert source[start:stop] == "torch.exp(y)"
    assert source.count("…") == 2


def test_a_name_is_coloured_only_where_it_stands_by_itself() -> None:
    found = replace(
        OVERFLOW,
        site="loss",
        port=None,
        op=None,
        why=("loss is lossless, model.loss is not, nor loss_scale, loss-scale or micro-loss",),
    )

    text = terminal.render(FakeRecording(), Diagnosis(findings=(found,)), screen=Screen(colour=True, width=120))

    (line,) = [line for line in text.splitlines() if "lossless" in line]
    for word in ("lossless", "model.loss", "loss_scale", "loss-scale", "micro-loss"):
        assert word in line  # no escape sequence inside


def test_cause_and_fix_come_before_the_evidence_and_what_mends_it_before_what_avoids_it() -> None:
    avoided = Remedy(action="drop-samples", text="leave out batch row 5", verified=True)
    found = replace(
        OVERFLOW, why=("a is 0", "b is finite", "to mend it: keep it away from 0"), remedy=avoided, limit=None
    )

    text = terminal.render(FakeRecording(), Diagnosis(status="findings", findings=(found,)))

    lines = [line.strip() for line in text.splitlines()]
    start = lines.index("= cause: format-overflow (proven by replay)")
    assert lines[start + 2 : start + 7] == [
        "= fix: keep it away from 0 (not verified)",
        "- leave out batch row 5 (verified by replay)",
        "= op: aten.mul.Tensor",
        "= why: a is 0",
        "- b is finite",
    ]


def test_in_the_place_only_the_site_is_coloured() -> None:
    found = replace(OVERFLOW, site="batch", port=None, op=None, source=None, why=())

    text = terminal.render(FakeRecording(), Diagnosis(findings=(found,)), screen=Screen(colour=True, width=120))

    assert "micro-batch 0" in text


def test_a_finding_of_no_place_names_its_phase_only():
    known = {"code": "HC233", "kind": "stagnation", "severity": "warning", "title": "in vain", "step": 3, "rank": 0}

    assert wording.where(Finding(**known, phase="optimizer"), 1) == "step 3, micro-batch 0, optimizer"
    assert wording.where(Finding(**known, phase="optimizer", site="a"), 1) == "step 3, micro-batch 0, a (optimizer)"
