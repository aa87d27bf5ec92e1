"""record/tail.py: each look gives the whole steps that came since the last one, each once, from whichever file."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path

import pytest

from hypocenter.nouns import Attempt, Place, Reading, StepRecord, Summary
from hypocenter.record import tail
from hypocenter.record.keeper import Keep
from hypocenter.record.place_file import write_place
from hypocenter.record.reader import open_run
from hypocenter.record.tail import RankTail
from hypocenter.record.writer import STEPS_OF_BLOCK, Writer, host_name


def reading(step: int) -> Reading:
    return Reading(step=step, microbatch=0, phase="forward", site="a", port="out[0]", order=1, summary=Summary(n=6))


def write(writer: Writer, steps: range) -> None:
    for step in steps:
        writer.write([reading(step)], StepRecord(step=step, loss=step / 7, grad_norm=float("nan")))


def looked(found: RankTail) -> list[int]:
    news = found.look()
    assert news.problem == ""
    return [record.step for record in news.steps]


def writer_of(run: Path) -> Writer:
    return Writer(run, rank=0, warn=pytest.fail)


def test_steps_are_given_once_while_they_go_from_the_journal_to_the_stream_and_into_the_sealed_file(
    tmp_path: Path,
) -> None:
    writer, dice = writer_of(tmp_path), random.Random(3)
    write(writer, range(1))
    found, given, written = RankTail(tmp_path / "rank-00000"), [], 1
    while written < 3 * STEPS_OF_BLOCK:
        n = dice.choice([1, 3, 40, 300])
        write(writer, range(written, written + n))
        written += n
        given += looked(found)
        assert given == list(range(written))
    writer.close()

    assert looked(found) == []
    assert [record.step for _, record in open_run(tmp_path).step_records()] == given


def test_a_look_after_the_end_gives_what_was_missed(tmp_path: Path) -> None:
    writer = writer_of(tmp_path)
    write(writer, range(5))
    found = RankTail(tmp_path / "rank-00000")
    first = looked(found)
    write(writer, range(5, 400))
    writer.close()

    assert first == [0, 1, 2, 3, 4]
    assert looked(found) == list(range(5, 400))
    assert looked(RankTail(tmp_path / "rank-00000")) == list(range(400))


def test_a_step_under_way_is_not_given_before_its_end_has_come(tmp_path: Path) -> None:
    source, shown = tmp_path / "a", tmp_path / "b"
    write(writer_of(source), range(4))
    (journal,) = (source / "rank-00000").glob("journal-*")
    data = journal.read_bytes()
    shutil.copytree(source, shown)
    (copy,) = (shown / "rank-00000").glob("journal-*")
    found, given = RankTail(shown / "rank-00000"), []
    for end in range(len(data) + 1):
        copy.write_bytes(data[:end])
        given += looked(found)

    assert given == [0, 1, 2, 3]


def test_only_what_is_new_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = writer_of(tmp_path)
    write(writer, range(2 * STEPS_OF_BLOCK))
    write(writer, range(2 * STEPS_OF_BLOCK, 2 * STEPS_OF_BLOCK + 100))
    found = RankTail(tmp_path / "rank-00000")
    looked(found)
    read: list[int] = []
    pread = os.pread
    monkeypatch.setattr(tail.os, "pread", lambda *args: read.append(len(data := pread(*args))) or data)

    nothing = looked(found)
    idle, _ = sum(read), read.clear()
    write(writer, range(612, 613))

    assert nothing == []
    assert idle < 200  # the first entry of the journal
    assert looked(found) == [612]
    assert sum(read) < 2_000


def test_a_later_attempt_makes_the_earlier_one_void_from_its_first_step_on(tmp_path: Path) -> None:
    write(writer_of(tmp_path), range(6))
    found = RankTail(tmp_path / "rank-00000")
    before = looked(found)
    host = host_name()
    for path in list((tmp_path / "rank-00000").iterdir()):
        path.rename(path.with_name(path.name.replace(f"-{os.getpid()}", "-999998")))
    found = RankTail(tmp_path / "rank-00000")
    assert looked(found) == before
    for number, pid in enumerate((999998, os.getpid())):
        write_place(tmp_path, Place(rank=0), Attempt(number=number, host=host, pid=pid))
    write(writer_of(tmp_path), range(4, 9))

    assert found.look().again
    assert looked(RankTail(tmp_path / "rank-00000")) == [0, 1, 2, 3, 4, 5, 6, 7, 8]


@pytest.mark.parametrize("pattern", ["journal-*", "steps-*"])
def test_bytes_of_a_stranger_are_said_and_never_raise(tmp_path: Path, pattern: str) -> None:
    write(writer_of(tmp_path), range(3))
    (path,) = (tmp_path / "rank-00000").glob(pattern)
    good = path.read_bytes()
    for seed in range(40):
        data = bytearray(good)
        for _ in range(3):
            data[random.Random(seed).randrange(len(data))] ^= 0xFF
        path.write_bytes(data)
        found = RankTail(tmp_path / "rank-00000")

        news = found.look()

        assert len(news.steps) <= 3
    path.unlink()
    os.mkfifo(path)
    assert "no regular file" in RankTail(tmp_path / "rank-00000").look().problem


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    write(writer_of(tmp_path / "run"), range(3))
    (path,) = (tmp_path / "run" / "rank-00000").glob("journal-*")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")

    news = RankTail(tmp_path / "run" / "rank-00000").look()

    assert news.steps == ()
    assert news.problem


@pytest.mark.parametrize("every", [1, 3, 40])
def test_segments_that_are_sealed_and_put_together_meanwhile_are_given_once(tmp_path: Path, every: int) -> None:
    keep = Keep(n_bytes=1 << 30, n_steps=60)
    writer = Writer(tmp_path, rank=0, warn=pytest.fail, keep=keep)
    write(writer, range(1))
    found, given = RankTail(tmp_path / "rank-00000"), []
    for step in range(1, 400):
        write(writer, range(step, step + 1))
        if step % every == 0:
            given += looked(found)
            assert given == list(range(step + 1))
    writer.close()

    assert given + looked(found) == list(range(400))
    assert looked(RankTail(tmp_path / "rank-00000")) == [r.step for _, r in open_run(tmp_path).step_records()]
