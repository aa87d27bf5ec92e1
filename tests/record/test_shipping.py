"""record/shipping.py against an S3 server on localhost that is slow, refuses, cuts and is full."""

from __future__ import annotations

import os
import random
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from bench.retention.store import SECRET, Store, served
from hypocenter.errors import ConfigError, CorruptRecordingError, NoRecordingError
from hypocenter.record import ship_apart
from hypocenter.record.address import address_of, filesystem_of, is_address, without_secrets
from hypocenter.record.keeper import Keep
from hypocenter.record.reader import open_run
from hypocenter.record.run_file import finish_run, start_run
from hypocenter.record.ship_apart import ship_until
from hypocenter.record.shipping import Freight, Shipper, digest_of, is_being_written, read_manifest, ship_run
from hypocenter.record.writer import Writer
from tests.record.retained import template, write

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
KEEP = Keep(n_bytes=1 << 20, n_steps=512)


@pytest.fixture(scope="module")
def server() -> Iterator[Store]:
    pytest.importorskip("moto")
    pytest.importorskip("s3fs")
    with served() as store:
        yield store


@pytest.fixture
def store(server: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    server.faults = {}
    monkeypatch.setattr(ship_apart, "FIRST_WAIT_S", 0.01)
    monkeypatch.setattr(ship_apart, "LONGEST_WAIT_S", 0.05)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return server


@contextmanager
def shipping(out: Path, address: str, said: list[str]) -> Generator[threading.Event]:
    """As the process of a shipper does, in a thread of this one; the event tells it that the program is over."""
    freight = Freight(run=out, folder=out / "rank-00000", address=address, also=("run.json",))
    over = threading.Event()
    thread = threading.Thread(target=ship_until, args=(over, freight, 0.1, said.append))
    thread.start()
    try:
        yield over
    finally:
        over.set()
        thread.join(200)
        assert not thread.is_alive()


def written(out: Path, n_steps: int, *, is_closed: bool = True, each: Callable[[int], None] = lambda _: None) -> None:
    """A recording of so many steps."""
    out.mkdir(exist_ok=True)
    start_run(out, ("train.py",), {}, 1, {}, {})
    writer, of = Writer(out, rank=0, warn=pytest.fail, keep=KEEP), template()
    for step in range(n_steps):
        write(writer, of, step, is_bad=step == 300)
        each(step)
    if writer.keeper is not None:
        writer.keeper.wait()
    if is_closed:
        writer.close()
        finish_run(out, "finished", 0, [])


def shipped(out: Path, address: str, n_steps: int, said: list[str]) -> None:
    """A recording of so many steps, shipped while it grows and at its end."""
    with shipping(out, address, said):
        written(out, n_steps)


def assert_acknowledged_is_there(address: str) -> int:
    """Everything that the manifest names is there, to the bit; how many files it names."""
    filesystem, root = filesystem_of(address)
    filesystem.invalidate_cache()
    try:
        manifest = read_manifest(filesystem.cat_file(f"{root}/rank-00000/manifest.json"))
    except FileNotFoundError:
        return 0
    import hashlib

    for name, state in manifest.files.items():
        data = filesystem.cat_file(f"{root}/rank-00000/{state.object or name}")
        assert (len(data), hashlib.sha256(data).hexdigest()) == (state.size, state.sha256)
    return len(manifest.files)


def assert_what_is_there_can_be_read(address: str, n_written: int) -> None:
    """While it is shipped: whole steps from the first one on, or nothing yet."""
    with suppress(NoRecordingError):
        there = [record.step for _, record in open_run(address).step_records()]
        assert there == list(range(len(there)))
        assert len(there) <= n_written


def rows(path: Path | str) -> tuple[list[str], list[str], list[str]]:
    """Readings, step records and windows, as texts: what is NaN is as it was."""
    run = open_run(path)
    readings, steps, windows = ([str(row) for row in t.to_pylist()] for t in (run.table(), run.steps(), run.windows()))
    return readings, steps, windows


def test_a_recording_is_read_by_its_address_as_it_is_here(tmp_path: Path, store: Store) -> None:
    said: list[str] = []
    shipped(tmp_path / "run", "s3://runs/same", 2_100, said)

    assert said == []
    assert rows("s3://runs/same") == rows(tmp_path / "run")
    assert open_run("s3://runs/same").run.status == "finished"
    assert open_run(Path("s3://runs/same")).problems == []


def test_only_what_is_asked_for_is_brought_over(tmp_path: Path, store: Store) -> None:
    shipped(tmp_path / "run", "s3://runs/lazy", 600, [])

    run = open_run("s3://runs/lazy")
    assert not list(run.directory.glob("rank-*/sealed-*"))
    run.step_records()
    assert {path.name.split("-")[1] for path in run.directory.glob("rank-*/sealed-*")} == {"steps"}


def test_a_second_look_brings_only_what_is_new(tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    shipped(tmp_path / "run", "s3://runs/again", 600, [])
    rows("s3://runs/again")

    monkeypatch.setattr("hypocenter.record.elsewhere._fetched", pytest.fail)
    assert rows("s3://runs/again") == rows(tmp_path / "run")


def test_a_second_folder_will_do(tmp_path: Path) -> None:
    said: list[str] = []
    shipped(tmp_path / "run", str(tmp_path / "there"), 600, said)

    assert said == []
    assert rows(tmp_path / "there") == rows(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["slow", "503", "cut", "full", "lost answer"])
def test_nothing_acknowledged_is_lost_whatever_the_store_does(tmp_path: Path, store: Store, fault: str) -> None:
    store.faults, store.rng = {fault: 0.4}, random.Random(7)
    before = store.done[fault]
    said: list[str] = []
    address = f"s3://runs/{fault.replace(' ', '-')}"

    def look(step: int) -> None:
        time.sleep(0.001)
        if step % 400 == 399:
            assert_what_is_there_can_be_read(address, step + 1)

    with shipping(tmp_path / "run", address, said):
        written(tmp_path / "run", 1_300, each=look)
        assert store.done[fault] > before
        store.faults = {}

    assert assert_acknowledged_is_there(address) == len(list((tmp_path / "run" / "rank-00000").iterdir()))
    assert rows(address) == rows(tmp_path / "run")
    assert all(SECRET not in line for line in said)


@pytest.mark.parametrize("address", ["s3://runs/growing", "there"])
def test_steps_that_were_acknowledged_stay_while_their_files_change(tmp_path: Path, store: Store, address: str) -> None:
    out, address = tmp_path / "run", address if "://" in address else str(tmp_path / address)
    freight = Freight(run=out, folder=out / "rank-00000", address=address)
    seen: list[list[str]] = []

    def look(step: int) -> None:
        if step % 83 == 82:
            freight.ship(is_over=False)
            seen.append(rows(address)[1])
            assert len(seen[-1]) == step + 1  # all that was written up to then, rolled up or not

    written(out, 700, is_closed=False, each=look)
    assert all(after[: len(before)] == before for before, after in pairwise(seen))
    assert len(rows(address)[0]) > 0
    freight.ship(is_over=True)
    assert rows(address) == rows(out)
    filesystem, root = filesystem_of(address)
    assert not [
        name for name in filesystem.ls(f"{root}/rank-00000", detail=False) if re.search(r"\.[0-9a-f]{12}$", name)
    ]


def test_what_died_before_it_was_shipped_is_all_that_is_lost(tmp_path: Path, store: Store) -> None:
    out = tmp_path / "run"
    freight = Freight(run=out, folder=out / "rank-00000", address="s3://runs/died", also=("run.json",))
    written(out, 1_300, is_closed=False, each=lambda step: freight.ship(is_over=False) if step == 1_200 else None)
    here = rows(out)[1]

    shutil.rmtree(out)  # the machine and its disk

    assert rows("s3://runs/died")[1] == here[:1_201]


def test_what_a_round_that_was_cut_off_has_left_goes_at_the_end(tmp_path: Path, store: Store) -> None:
    out = tmp_path / "run"
    freight = Freight(run=out, folder=out / "rank-00000", address="s3://runs/orphans")
    written(out, 300, each=lambda step: freight.ship(is_over=False) if step == 200 else None)
    filesystem, root = filesystem_of("s3://runs/orphans")
    filesystem.pipe_file(f"{root}/rank-00000/steps-h-1.arrow.0123456789ab", b"x")

    freight.ship(is_over=True)

    filesystem.invalidate_cache()
    there = {name.rpartition("/")[2] for name in filesystem.ls(f"{root}/rank-00000", detail=False)}
    assert there == {path.name for path in (out / "rank-00000").iterdir()} | {"manifest.json"}


@pytest.mark.night
def test_a_store_that_never_answers_costs_no_step_and_is_said_at_the_end(tmp_path: Path, store: Store) -> None:
    store.faults = {"503": 1.0}
    said: list[str] = []
    began = time.monotonic()
    with shipping(tmp_path / "run", "s3://runs/never", said):
        written(tmp_path / "run", 600)
        n_steps_s = time.monotonic() - began
        while not said and time.monotonic() - began < 60:
            time.sleep(0.01)

    assert n_steps_s < 30
    assert len(said) == 2
    assert "training goes on" in said[0]
    assert "hypocenter ship" in said[1]
    assert len(open_run(tmp_path / "run").step_records()) == 600


def test_shipping_goes_on_where_it_was_cut_off(tmp_path: Path, store: Store) -> None:
    out = tmp_path / "run"
    shipped(out, "s3://runs/resumed", 600, [])
    (out / "rank-00000" / "facts.json").write_text("{}")
    freight = Freight(run=out, folder=out / "rank-00000", address="s3://runs/resumed")
    put: list[str] = []
    inner = Freight._put

    def counted(self: Freight, filesystem: object, path: Path, target: str, state: object) -> bool:
        put.append(path.name)
        return inner(self, filesystem, path, target, state)  # pyright: ignore[reportArgumentType]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Freight, "_put", counted)
        freight.ship(is_over=True)

    assert put == ["facts.json"]


def test_a_whole_recording_is_shipped_afterwards(tmp_path: Path, store: Store) -> None:
    out = tmp_path / "run"
    shipped(out, str(tmp_path / "elsewhere"), 600, [])

    n_files = ship_run(out, "s3://runs/after", [out / "rank-00000"])

    assert n_files == assert_acknowledged_is_there("s3://runs/after")
    assert rows("s3://runs/after") == rows(out)


def test_what_was_changed_there_is_not_taken_for_what_was_shipped(tmp_path: Path, store: Store) -> None:
    shipped(tmp_path / "run", "s3://runs/changed", 600, [])
    filesystem, root = filesystem_of("s3://runs/changed")
    name = next(p.name for p in (tmp_path / "run" / "rank-00000").iterdir() if p.name.startswith("sealed-steps"))
    filesystem.pipe_file(f"{root}/rank-00000/{name}", b"something else")

    with pytest.raises(CorruptRecordingError, match="is not what was shipped"):
        open_run("s3://runs/changed").step_records()


def test_a_manifest_names_no_file_outside_of_its_folder(tmp_path: Path, store: Store) -> None:
    shipped(tmp_path / "run", "s3://runs/hostile", 300, [])
    filesystem, root = filesystem_of("s3://runs/hostile")
    path = f"{root}/rank-00000/manifest.json"
    manifest = read_manifest(filesystem.cat_file(path))
    manifest.files = {"../../evidence.json": next(iter(manifest.files.values()))}
    import msgspec

    filesystem.pipe_file(path, msgspec.json.encode(manifest))

    with pytest.raises(CorruptRecordingError, match="outside"):
        open_run("s3://runs/hostile")


def test_a_process_of_its_own_ships_and_says_why_not(tmp_path: Path, store: Store) -> None:
    out, said = tmp_path / "run", list[str]()
    shipped(out, str(tmp_path / "there"), 300, [])

    for address in ("s3://runs/apart", "s3://no-such-bucket/x"):
        shipper = Shipper(Freight(run=out, folder=out / "rank-00000", address=address), said.append)
        assert shipper.close(60) == (address == "s3://runs/apart")

    assert assert_acknowledged_is_there("s3://runs/apart") == len(list((out / "rank-00000").iterdir()))
    assert len(said) == 1
    assert "NoSuchBucket" in said[0] or "FileNotFoundError" in said[0] or "does not exist" in said[0]


def test_the_process_ships_as_the_program_writes_and_all_of_it_when_the_program_dies(tmp_path: Path) -> None:
    out, there = tmp_path / "run", tmp_path / "there"
    out.mkdir()
    shipper = Shipper(Freight(run=out, folder=out / "rank-00000", address=str(there)), pytest.fail, every_s=0.05)

    def wait(step: int) -> None:
        while step == 100 and not (there / "rank-00000" / "manifest.json").exists():
            time.sleep(0.01)

    written(out, 300, is_closed=False, each=wait)
    assert shipper._process is not None
    assert shipper._process.stdin is not None
    shipper._process.stdin.close()  # as the system does it
    shipper._process.wait(60)

    assert rows(there)[1] == rows(out)[1]


def test_the_end_is_told_although_a_forked_worker_holds_the_way(tmp_path: Path) -> None:
    out = tmp_path / "run"
    written(out, 50)
    shipper = Shipper(Freight(run=out, folder=out / "rank-00000", address=str(tmp_path / "there")), pytest.fail)
    process = shipper._process
    assert process is not None
    assert process.stdin is not None
    held = os.dup(process.stdin.fileno())  # as a worker that was forked meanwhile has it

    assert shipper.close(60)
    os.close(held)
    assert rows(tmp_path / "there")[1] == rows(out)[1]


def test_a_fork_of_the_program_does_not_end_what_ships(tmp_path: Path) -> None:
    out = tmp_path / "run"
    written(out, 50)
    shipper = Shipper(Freight(run=out, folder=out / "rank-00000", address=str(tmp_path / "there")), pytest.fail)
    process = shipper._process
    assert process is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "getpid", lambda: -1)
        assert not shipper.close(60)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.5)
    process.kill()
    process.wait()


def test_where_nothing_is_one_error_says_so(store: Store) -> None:
    with pytest.raises(NoRecordingError):
        open_run("s3://runs/nothing-here")
    with pytest.raises(ConfigError, match="cannot be reached"):
        open_run("nosuch://runs/x")


def test_no_secret_is_in_the_recording_or_in_what_was_said(tmp_path: Path, store: Store) -> None:
    store.faults = {"503": 0.5, "full": 0.3}
    said: list[str] = []
    with shipping(tmp_path / "run", "s3://runs/secret", said):
        written(tmp_path / "run", 600)
        while not said:
            time.sleep(0.01)
        store.faults = {}

    filesystem, _ = filesystem_of("s3://runs/secret")
    filesystem.invalidate_cache()
    there = b"".join(map(filesystem.cat_file, filesystem.find("runs/secret")))
    here = b"".join(path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file())
    assert SECRET.encode() not in there + here
    assert SECRET not in " ".join(said)
    with pytest.raises(ConfigError, match="user or a password"):
        filesystem_of("s3://me:secret@bucket/run")
    assert (
        without_secrets(f"no: aws_secret_access_key={SECRET} s3://a:b@c/d") == "no: aws_secret_access_key=... s3://c/d"
    )


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("s3://bucket/run", True), ("s3:/bucket/run", True), ("gs://b", True), ("runs/x", False), ("/a/b", False),
     ("file:///a", False), ("a:b", False)],
)  # fmt: skip
def test_an_address_is_told_from_a_path(text: str, is_one: bool) -> None:
    assert is_address(Path(text)) == is_one
    assert not is_one or address_of(Path(text)) == address_of(text)


def test_what_is_being_written_waits(tmp_path: Path) -> None:
    assert [
        name for name in ("events-h-1.arrow", "journal-h-1.msgpack", "whereabouts") if not is_being_written(name)
    ] == []
    assert not is_being_written("sealed-events-h-1.s00000-00003.parquet")
    (tmp_path / "x").write_bytes(b"abc")
    assert digest_of(tmp_path / "x").size == 3
