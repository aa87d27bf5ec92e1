"""importing.kinds.mindspore_dump: damaged and malicious files give a problem said or one clear error."""

from __future__ import annotations

import contextlib
import os
import random
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hypocenter.errors import HypocenterError
from hypocenter.importing.catalogue import NotADumpError
from hypocenter.importing.mindspore_flow import Flow
from hypocenter.importing.mindspore_graph import read_graph

sys.path.insert(0, str(Path(__file__).parent))
from mindspore_trees import OVERFLOWED, TRAINED, copied, file_of, folder_of, imported, reading_of  # isort: skip

_GRAPH = "ms_output_trace_code_graph_0.ir"
_RELU = "ReLU.Default"


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("/tmp/hypocenter-was-here",)


def problems_after(dump: Path, out: Path) -> tuple[str, ...]:
    run = imported(dump, out)
    assert reading_of(run, "forward", "fc1.BiasAdd", "out[0]").summary.n == 12  # the rest is there
    assert not [r for r in run.readings(phase="forward") if (r.site, r.port) == ("act.ReLU", "out[0]")]
    return run.run.warnings


def header(shape: str, descr: str = "<f4") -> bytes:
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


def test_objects_in_a_file_are_never_unpickled(tmp_path: Path) -> None:
    dump = copied(TRAINED, tmp_path / "dump")
    np.save(file_of(dump, _RELU, "output.0"), np.array([Bomb()], dtype=object), allow_pickle=True)

    problems = problems_after(dump, tmp_path / "run")

    assert not Path("/tmp/hypocenter-was-here").exists()
    assert any("objects" in line for line in problems)


@pytest.mark.parametrize(
    "content",
    [
        header("(1000000, 1000000, 1000000)") + b"\0" * 64,  # claims 4 EB
        header("(3, 4)") + b"\0" * 20,  # cut off
        header("(-3, 4)") + b"\0" * 48,
        header("(3, 4)", "|V1000000000"),
        header("(" + "1, " * 40 + ")") + b"\0" * 4,  # more dimensions than NumPy has
        b"\x93NUMPY\x01\x00\xff\xff{'descr': " + b"[" * 60000,
        b"",
        b"\x93NUM",
        b"PK\x03\x04 not an array",
    ],
)
def test_a_bad_file_is_left_out_and_told(tmp_path: Path, content: bytes) -> None:
    dump = copied(TRAINED, tmp_path / "dump")
    file_of(dump, _RELU, "output.0").write_bytes(content)
    tracemalloc.start()

    problems = problems_after(dump, tmp_path / "run")

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20  # bytes
    assert any("ReLU" in line for line in problems)


def test_what_is_no_file_is_left_alone(tmp_path: Path) -> None:
    """A pipe that nobody writes to would be waited for for ever."""
    dump = copied(TRAINED, tmp_path / "dump")
    folder = folder_of(dump)
    name = file_of(dump, _RELU, "output.0")
    name.unlink()
    os.mkfifo(name)
    (folder / "loop").symlink_to(dump)
    (folder / "Add.Default_x-Net_Add-op0.0.0.1.output.0.DefaultFormat.Float32.npy").symlink_to("/dev/zero")

    problems_after(dump, tmp_path / "run")


@pytest.mark.parametrize("path", ["nothing", "empty"])
def test_a_folder_without_values_is_one_error(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty" / "rank_0" / ".dump_metadata").mkdir(parents=True)
    (tmp_path / "empty" / "rank_0" / ".dump_metadata" / "data_dump.json").write_text("{}")

    with pytest.raises(HypocenterError):
        imported(tmp_path / path, tmp_path / "run")


@pytest.mark.parametrize("content", [b"", b"[" * 100_000, b"null", b'{"common_dump_settings": [1]}', b"\xff\xfe\x00"])
def test_settings_may_be_anything(tmp_path: Path, content: bytes) -> None:
    dump = copied(OVERFLOWED, tmp_path / "dump")
    for name in ("data_dump.json", "config.json"):
        (dump / "rank_0" / ".dump_metadata" / name).write_bytes(content)

    run = imported(dump, tmp_path / "run")

    assert reading_of(run, "forward", "Mul", "out[0]").summary.n_posinf == 104


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_graph_never_stops_an_import(tmp_path: Path, seed: int) -> None:
    """Lines lost, doubled, cut and swapped: operators that cannot be told are said to be unknown."""
    rng = random.Random(seed)
    dump = copied((OVERFLOWED, TRAINED)[seed % 2], tmp_path / "dump")
    path = dump / "rank_0" / "graphs" / _GRAPH
    lines = path.read_text().splitlines(keepends=True)
    for _ in range(rng.choice((1, 20, 200))):
        at = rng.randrange(len(lines))
        kind = rng.randrange(4)
        other = rng.randrange(len(lines))
        line = lines[at]
        lines[at] = ("", line * 2, line[: rng.randrange(len(line) + 1)], lines[other])[kind]
    path.write_text("".join(lines))

    run = imported(dump, tmp_path / "run")

    assert list(run.readings(phase="forward"))


_LINES = (
    "  %1(CNode_1) = PrimFunc_Add(%0, %1)", "subgraph @g() {", "((((", "}", "  Return(%1)",
    "  %0(x) = Load(%0, UMonad[U])",
    "%para1_x: <Tensor[Float32], (2)>  :  IsWeight: true",
    "      : (<Tensor[Float16], (2)>) -> (<Tensor[Float16], (2)>)",
    "      : (<Float32xDefaultFormat{2}>) -> (<", "      # Fullname with scope: (Default/a-B/Add-op0)",
    "      # In file a.py:1~2, 3~4/x/", "  %2(x) = TupleGetItem(%1, I64(99999999999))", '  %3(y) = MakeTuple(%3, ")',
)  # fmt: skip


@pytest.mark.parametrize("seed", range(10))
def test_flipped_bits_anywhere_give_a_run_or_one_error(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    dump = copied((OVERFLOWED, TRAINED)[seed % 2], tmp_path / "dump")
    files = sorted(path for path in dump.rglob("*") if path.is_file())
    for path in rng.sample(files, len(files) // 2):
        content = bytearray(path.read_bytes())
        for _ in range(rng.choice((1, 8))):
            at = rng.randrange(min(len(content), 256))  # headers, more often than not
            content[at] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(content[: rng.choice((len(content), len(content) - 1, 100))]))

    with contextlib.suppress(HypocenterError):
        assert imported(dump, tmp_path / "run").run.warnings


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.sampled_from(_LINES) | st.text(max_size=30), max_size=30))
def test_any_graph_is_read(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    path = tmp_path_factory.getbasetemp() / "any.ir"
    path.write_bytes("\n".join(lines).encode("utf-8", "replace"))

    graph, _ = read_graph(path)

    flow = Flow(graph)
    assert len(flow.operators) <= len(graph.nodes) <= len(lines)
    assert isinstance(flow.cells, list)
    assert flow.loss is None or flow.loss in flow.operators
    for node in flow.operators:
        list(flow.sources(node))
        flow.scope(node)


def test_a_line_without_end_is_not_held(tmp_path: Path) -> None:
    path = tmp_path / "long.ir"
    with path.open("wb") as file:
        file.write(b"subgraph @g() {\n  %0(x) = PrimFunc_Add(Tensor(value=")
        for _ in range(64):
            file.write(b"1.0, " * (1 << 18))
        file.write(b"))\n      # Fullname with scope: (Default/Add-op0)\n")
    tracemalloc.start()

    graph, _ = read_graph(path)

    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 << 20  # bytes; the line has 80 MiB
    assert [node.full_name for node in graph.nodes.values()] == ["Default/Add-op0"]


def test_a_rank_beyond_all_is_one_error(tmp_path: Path) -> None:
    folder = tmp_path / "dump" / "rank_999999999" / "Net" / "0" / "0"
    folder.mkdir(parents=True)
    np.save(folder / "Add.Default_Add-op0.0.0.1.output.0.DefaultFormat.Float32.npy", np.zeros(3, np.float32))

    with pytest.raises(NotADumpError):
        imported(tmp_path / "dump", tmp_path / "run")
