"""Which event is named first, and when nobody can tell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import jsonschema
import pytest
from repeats.traces import Program, stored

from hypocenter.compare.repeats.answer import Determinism
from hypocenter.compare.repeats.engine import compare_repeats
from hypocenter.json_answer import published, to_json
from hypocenter.opbits import OUTSIDE

Build = Callable[[int], Program]
"""A program, of run 0 or 1: what differs is made from the number."""


def compared(folder: Path, *builds: Build) -> Determinism:
    runs = [stored(folder / str(k), *(build(k) for build in builds)) for k in (0, 1)]
    found = compare_repeats(runs)
    jsonschema.validate(__import__("json").loads(to_json(found)), published(Determinism))
    return found


def named(found: Determinism) -> tuple[str, str, int]:
    assert found.first is not None
    assert found.first.source is not None
    return found.first.cause, found.first.op, found.first.source.line


def test_equal_runs_are_deterministic(tmp_path: Path) -> None:
    def build(_: int) -> Program:
        p = Program()
        p.result("loss", p.op("aten.mm.default", out=5), 5)
        return p

    found = compared(tmp_path, build)

    assert (found.status, found.first, found.n_steps, found.results.n) == ("deterministic", None, 1, 1)


def test_an_operator_whose_inputs_agree_is_the_first(tmp_path: Path) -> None:
    def build(k: int) -> Program:
        p = Program()
        a = p.op("aten.mm.default", out=1)
        b = p.op("aten.index_add.default", [(a, 1)], out=10 + k)
        p.result("loss", p.op("aten.mean.default", [(b, 10 + k)], out=20 + k), 20 + k)
        return p

    found = compared(tmp_path, build)

    assert named(found) == ("unordered-accumulation", "aten.index_add.default", 1)
    assert found.first is not None
    assert found.first.confidence == "proven"


def test_another_kernel_is_not_called_an_addition(tmp_path: Path) -> None:
    def build(k: int) -> Program:
        p = Program()
        p.result("loss", p.op("aten.sort.stable", out=k), k)
        return p

    assert named(compared(tmp_path, build)) == ("kernel-not-repeatable", "aten.sort.stable", 0)


def test_what_reaches_no_result_is_a_note(tmp_path: Path) -> None:
    def build(k: int) -> Program:
        p = Program()
        p.op("aten.rand.default", out=k, generator="torch cpu", state=k)
        p.result("loss", p.op("aten.mm.default", out=5), 5)
        return p

    found = compared(tmp_path, build)

    assert (found.status, found.first) == ("deterministic", None)
    assert "1 event differed without reaching" in found.notes[0]


def test_a_draw_without_a_seed(tmp_path: Path) -> None:
    def build(k: int) -> Program:
        p = Program()
        w = p.op("aten.uniform_.default", out=k, generator="torch cpu", state=70 + k, note=str(k), phase="setup")
        p.trace.parameters[w] = "fc.weight"
        p.result("loss", p.op("aten.mm.default", [(w, k)], out=k), k)
        return p

    found = compared(tmp_path, build)

    assert named(found) == ("unseeded-generator", "aten.uniform_.default", 0)
    assert found.first is not None
    assert found.first.param == "fc.weight"
    assert [draw.op for draw in found.draws] == ["aten.uniform_.default"]


def test_a_seed_that_differs_is_named_in_place_of_the_draw(tmp_path: Path) -> None:
    def build(k: int) -> Program:
        p = Program()
        p.add("seed", "torch.manual_seed", generator="torch cpu", state=k, note=f"17{k}")
        w = p.op("aten.uniform_.default", out=k, generator="torch cpu", state=70 + k, note=f"17{k}")
        p.result("loss", w, k)
        return p

    found = compared(tmp_path, build)

    assert named(found) == ("seed-differs", "torch.manual_seed", 0)
    assert [draw.op for draw in found.draws] == ["aten.uniform_.default"]


def test_a_generator_that_only_follows_is_not_blamed(tmp_path: Path) -> None:
    def build(k: int) -> Program:
        p = Program()
        p.add("seed", "torch.manual_seed", generator="torch cpu", state=1, note="0")
        a = p.op("aten.rand.default", out=1, generator="torch cpu", state=7, note="0")
        b = p.op("aten.scatter_add.default", [(a, 1)], out=10 + k)
        c = p.op("aten.poisson.default", [(b, 10 + k)], out=20 + k, generator="torch cpu", state=8, note="0")
        d = p.op("aten.bernoulli_.float", [(c, 20 + k)], out=30 + k, generator="torch cpu", state=90 + k, note="0")
        p.result("loss", d, 30 + k)
        return p

    found = compared(tmp_path, build)

    assert named(found) == ("unordered-accumulation", "aten.scatter_add.default", 2)
    assert found.draws == ()


def test_data_from_outside_are_explained_by_the_draw_of_a_worker(tmp_path: Path) -> None:
    def main(k: int) -> Program:
        p = Program(at=100)
        p.result("loss", p.op("aten.embedding.default", [(OUTSIDE, 60 + k)], out=k), k)
        return p

    def worker(k: int) -> Program:
        p = Program("Process-1", worker=0)
        p.add("seed", "numpy.random.seed", generator="numpy.random", state=3, note="5", via="loader")
        p.add("seed", "numpy.random.seed", generator="numpy.random", state=k)
        p.add("draw", "numpy.random.normal", generator="numpy.random", state=80 + k, phase="data")
        return p

    found = compared(tmp_path, main, worker)

    assert named(found) == ("unseeded-generator", "numpy.random.seed", 1)
    assert found.first is not None
    assert (found.first.worker, found.first.confidence) == (0, "likely")


def test_workers_seeded_by_an_unseeded_main_process_are_not_listed(tmp_path: Path) -> None:
    def main(k: int) -> Program:
        p = Program(at=100)
        w = p.op("aten.random_.default", out=k, generator="torch cpu", state=70 + k, note=str(k), via="loader")
        q = p.op("aten.embedding.default", [(OUTSIDE, 60 + k)], out=k)
        p.result("loss", p.op("aten.add.Tensor", [(w, k), (q, k)], out=k), k)
        return p

    def worker(k: int) -> Program:
        p = Program("Process-1", worker=0, at=200)
        p.add("seed", "random.seed", generator="random", state=k, note=str(k), via="loader")
        p.add("draw", "random.random", generator="random", state=80 + k)
        return p

    assert [draw.op for draw in compared(tmp_path, main, worker).draws] == ["aten.random_.default"]


def test_data_that_no_draw_explains(tmp_path: Path) -> None:
    def build(k: int) -> Program:
        p = Program()
        p.result("loss", p.op("aten.embedding.default", [(OUTSIDE, 60 + k)], out=k), k)
        return p

    assert named(compared(tmp_path, build)) == ("other-data", "aten.embedding.default", 0)


def test_a_draw_after_the_data_explains_nothing(tmp_path: Path) -> None:
    def build(k: int) -> Program:
        p = Program()
        q = p.op("aten.embedding.default", [(OUTSIDE, 60 + k)], out=k)
        p.add("draw", "random.random", generator="random", state=80 + k)
        p.result("loss", q, k)
        return p

    assert named(compared(tmp_path, build))[0] == "other-data"


def test_memory_that_agreed_when_it_was_written(tmp_path: Path) -> None:
    for is_undefined, cause in ((False, "changed-outside"), (True, "undefined-memory")):

        def build(k: int, is_undefined: bool = is_undefined) -> Program:
            p = Program()
            a = p.op("aten.fill_.Tensor", out=1)
            p.result("loss", p.op("aten.mm.default", [(a, 60 + k, is_undefined)], out=k), k)
            return p

        assert named(compared(tmp_path / cause, build)) == (cause, "aten.mm.default", 1)


def test_other_arguments_are_a_choice_of_the_program(tmp_path: Path) -> None:
    def build(k: int) -> Program:
        p = Program()
        a = p.op("aten.ones.default", out=1)
        p.result("loss", p.op("aten.mul.Tensor", [(a, 1)], out=k, arguments=f"0.{k}"), k)
        return p

    found = compared(tmp_path, build)

    assert named(found) == ("other-path", "aten.mul.Tensor", 1)
    assert found.first is not None
    assert "0.0 in one run, 0.1 in the other" in found.first.why[0]


def test_arguments_that_came_from_a_tensor_lead_back_to_it(tmp_path: Path) -> None:
    def build(k: int) -> Program:
        p = Program()
        a = p.op("aten.index_put.default", out=40 + k)
        p.item(a, 40 + k)
        b = p.op("aten.ones.default", out=1)
        p.result("loss", p.op("aten.mul.Tensor", [(b, 1)], out=k, arguments=f"0.{k}"), k)
        return p

    assert named(compared(tmp_path, build)) == ("unordered-accumulation", "aten.index_put.default", 0)


def test_another_part_of_the_same_tensor_is_a_choice(tmp_path: Path) -> None:
    def build(k: int) -> Program:
        p = Program()
        a = p.op("aten.randn.default", out=1)
        p.add("draw", "random.randint", generator="random", state=80 + k)
        p.result("loss", p.op("aten.stack.default", [(a, 60 + k, False, k)], out=k), k)
        return p

    assert named(compared(tmp_path, build)) == ("unseeded-generator", "random.randint", 1)


def test_runs_that_do_other_things(tmp_path: Path) -> None:
    def build(k: int) -> Program:
        p = Program()
        a = p.op("aten.ones.default", out=1)
        b = p.op("aten.tanh.default" if k else "aten.relu.default", [(a, 1)], out=50 + k, line=7)
        p.result("loss", b, 50 + k)
        return p

    found = compared(tmp_path, build)

    assert named(found) == ("other-path", "aten.relu.default", 7)
    assert found.first is not None
    assert "aten.tanh.default" in found.first.why[0]


def test_the_first_rank_to_part_is_named(tmp_path: Path) -> None:
    def rank(number: int, broken: bool) -> Build:
        def build(k: int) -> Program:
            p = Program(rank=number, at=10 * number)
            digest = k if broken else 5
            a = p.op("aten.bincount.default", out=digest)
            p.result("loss", a, digest)
            return p

        return build

    found = compared(tmp_path, rank(0, False), rank(1, True))

    assert found.first is not None
    assert (found.first.rank, found.n_ranks) == (1, 2)


def test_a_run_without_a_step_cannot_be_judged(tmp_path: Path) -> None:
    def build(k: int) -> Program:
        p = Program()
        p.op("aten.ones.default", out=1)
        return p

    found = compared(tmp_path, build)

    assert (found.status, found.first) == ("cannot-tell", None)
    assert "run 1 finished no step" in found.why[0]


def test_runs_of_other_ranks_cannot_be_judged(tmp_path: Path) -> None:
    def rank(number: int) -> Program:
        p = Program(rank=number)
        p.result("loss", p.op("aten.ones.default", out=1), 1)
        return p

    runs = [stored(tmp_path / "a", rank(0), rank(1)), stored(tmp_path / "b", rank(0))]

    assert compare_repeats(runs).status == "cannot-tell"


@pytest.mark.parametrize("n", [3, 4])
def test_any_run_that_differs_from_the_first_counts(n: int, tmp_path: Path) -> None:
    runs: list[Path] = []
    for k in range(n):
        p = Program()
        digest = 5 if k < n - 1 else 6
        p.result("loss", p.op("aten.put.default", out=digest), digest)
        runs.append(stored(tmp_path / str(k), p))

    assert named(compare_repeats(runs)) == ("unordered-accumulation", "aten.put.default", 0)


def test_a_torn_file_is_read_up_to_the_tear(tmp_path: Path) -> None:
    p = Program()
    p.result("loss", p.op("aten.ones.default", out=1), 1)
    runs = [stored(tmp_path / name, p) for name in "ab"]
    path = runs[1] / "rank-00000" / "op-bits.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:-1]) + whole[-1][:10])

    found = compare_repeats(runs)

    assert found.status == "deterministic"
    assert "torn" in found.notes[0]
