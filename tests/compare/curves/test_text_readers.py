"""Text logs in the line formats of several versions, each as its framework printed it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from made_curves import falling, megatron_lines

from hypocenter.compare.curves.catalogue import READERS, read_curve
from hypocenter.compare.curves.curve import Curve
from hypocenter.errors import HypocenterError, NoRecordingError, UnknownNameError

MEGATRON = {
    "2019": " iteration       20/  500000 | elapsed time per iteration (ms): 557.0 | learning rate: 1.500E-06 | "
    "lm loss: 1.030000E+01 | loss scale: 65536.0 |",
    "2020": " iteration       20/  500000 | consumed samples:          160 | elapsed time per iteration (ms): 20.1 | "
    "learning rate: 1.500E-06 | global batch size:     8 | lm loss: 1.030000E+01 | loss scale: 65536.0 | "
    "grad norm: 5.960 | number of skipped iterations:   0 | number of nan iterations:   0 |",
    "2024": " [2024-09-03 15:56:55] iteration       20/  500000 | consumed samples:        20480 | elapsed time per "
    "iteration (ms): 12137.8 | throughput per GPU (TFLOP/s/GPU): 872.5 | learning rate: 1.500000E-06 | global batch "
    "size:  1024 | lm loss: 1.030000E+01 | loss scale: 65536.0 | grad norm: 5.960 | num zeros: 71.0 | params norm: "
    "2120.030 | number of skipped iterations:   5 | number of nan iterations:   0 |",
    "mixture": "[default7]: [2025-02-28 16:25:34] iteration       20/  119209 | consumed samples:         2048 | "
    "elapsed time per iteration (ms): 46298.6 | learning rate: 1.500000E-06 | global batch size:  2048 | lm loss: "
    "1.030000E+01 | load_balancing_loss: 9.937914E-01 | loss scale: 65536.0 | grad norm: 5.960 |",
    "deepspeed": "[default3]: iteration       20/ 3125000 | consumed samples:       1920 | elapsed time per iteration "
    "(s): 5.3551 | learning rate: 1.500E-06 | global batch size:    96 | lm loss: 1.030000E+01 | loss scale: 65536.0 | "
    "grad norm: 5.960 | number of skipped iterations:   0 | samples per second: 17.927 | TFLOPs: 137.10 |",
    "bare": "iteration 20/20000 | learning rate: 1.500E-06 | lm loss:  10.30 | loss scale: 65536.0 | grad norm: 5.960",
}  # fmt: skip

MINDFORMERS = {
    "2023": "print_output_info: Epoch:[  1/  2], step:[   20/29134], loss:[10.300/10.442], time:68580.279 ms, "
    "lr:1.5e-06, overflow cond: False, loss_scale: 65536.0",
    "2024": "2024-06-01 - mindformers[callback.py:317] - INFO - { Epoch:[  1/  2], step:[   20/ 6500], loss: 10.300, "
    "per_step_time: 1752ms, lr: 1.5e-06, overflow cond: False, loss_scale: 65536.0",
    "no data sinking": "{ Epoch:[  1/  2], step:[   20/ 6500], loss:[10.300/10.400], per_step_time: 1752ms, "
    "lr: 1.5e-06, overflow cond: False, loss_scale: 65536.0, global_norm: [5.96], train_throughput_per_npu: 2.849T",
    "2025": "- INFO - { Epoch:[  1/  2], step:[   20/ 6500], loss: 10.300, lm_loss: 10.100, aux_loss: 0.200, "
    "per_step_time: 166756ms, lr: 1.5e-06, overflow cond: False, loss_scale: 65536.0, global_norm: [5.96]",
}  # fmt: skip


def read(path: Path, text: str) -> Curve:
    path.write_text(text, encoding="utf-8")
    return read_curve(path)


def outcome(path: Path, kind: str | None = None) -> Curve | HypocenterError:
    """The curve, or the one error that a person would see; anything else is raised."""
    try:
        return read_curve(path, kind=kind)
    except HypocenterError as error:
        return error


def only(curve: Curve, name: str) -> tuple[int, float]:
    """Step and value of a series of one entry."""
    series = curve.series[name]
    assert len(series.steps) == 1, series
    return int(series.steps[0]), float(series.values[0])


@pytest.mark.parametrize("version", MEGATRON)
def test_every_version_of_megatrons_line_is_read(tmp_path: Path, version: str) -> None:
    curve = read(tmp_path / "log.txt", f"using torch.float16\n{MEGATRON[version]}\n")

    assert curve.kind == "megatron"
    assert only(curve, "loss") == (19, pytest.approx(10.3))
    assert only(curve, "lr") == (19, 1.5e-06)
    assert only(curve, "loss_scale") == (19, 65536.0)
    assert curve.series["loss"].is_mean
    if version != "2019":
        assert only(curve, "grad_norm") == (19, 5.96)
    assert not any("elapsed" in name or "throughput" in name.lower() for name in curve.series)
    assert curve.problems == ()


@pytest.mark.parametrize("version", MINDFORMERS)
def test_every_version_of_mindformers_line_is_read(tmp_path: Path, version: str) -> None:
    curve = read(tmp_path / "log.txt", f"{MINDFORMERS[version]}\n   0.0% |      | 0.006 samples/s/p  25 days }}\n")

    assert curve.kind == "mindformers"
    assert only(curve, "loss") == (19, 10.3)
    assert only(curve, "lr") == (19, 1.5e-06)
    assert only(curve, "loss_scale") == (19, 65536.0)
    if "global_norm" in MINDFORMERS[version]:
        assert only(curve, "grad_norm") == (19, 5.96)
    assert curve.problems == ()


def test_steps_of_a_later_epoch_go_on(tmp_path: Path) -> None:
    line = "{{ Epoch:[  {}/  2], step:[   {}/ 10], loss: 1.000, per_step_time: 1ms"
    curve = read(tmp_path / "log", line.format(1, 10) + "\n" + line.format(2, 1) + "\n")

    assert curve.series["loss"].steps.tolist() == [9, 10]


def test_a_grad_norm_printed_with_a_blank_is_left_out_and_told(tmp_path: Path) -> None:
    line = "{ Epoch:[  1/  2], step:[    1/   19], loss: 10.649, lr: 0.0, loss_scale: 1.0, global_norm: [1 31049]\n"
    curve = read(tmp_path / "log", line)

    assert "grad_norm" not in curve.series
    assert curve.problems == ("global_norm of a line is not a number",)


def test_an_interval_of_skipped_iterations_has_no_loss(tmp_path: Path) -> None:
    skipped = (
        " iteration  10/ 99 | learning rate: 0.000000E+00 | loss scale: 8388608.0 | number of skipped iterations: 10 |"
    )
    curve = read(tmp_path / "log", f"{skipped}\n{MEGATRON['2024']}\n")

    assert curve.series["loss"].steps.tolist() == [19]
    assert curve.series["loss_scale"].steps.tolist() == [9, 19]


def test_nan_and_inf_are_values(tmp_path: Path) -> None:
    curve = read(
        tmp_path / "log", " iteration 1/ 9 | lm loss: NAN | grad norm: inf |\n iteration 2/ 9 | lm loss: 1.0 |\n"
    )

    assert [str(value) for value in curve.series["loss"].values] == ["nan", "1.0"]
    assert curve.series["grad_norm"].values.tolist() == [float("inf")]


def test_a_resumed_run_overwrites_what_it_does_again(tmp_path: Path) -> None:
    curve = read(tmp_path / "log", megatron_lines(falling(30)) + megatron_lines(falling(30)[:5] + 1, first=11))

    assert curve.series["loss"].steps.tolist() == list(range(15))
    assert curve.series["loss"].values[10] == pytest.approx(falling(30)[0] + 1, rel=1e-6)
    assert any("logged again later" in problem for problem in curve.problems)


def test_the_decimals_that_were_printed_are_known(tmp_path: Path) -> None:
    line = "{{ Epoch:[  1/  2], step:[   {}/ 99], loss: {:.3f}, lr: 1e-05\n"
    curve = read(tmp_path / "log", "".join(line.format(i + 1, loss) for i, loss in enumerate(falling(20))))

    assert curve.series["loss"].quantum == 1e-3
    assert read(tmp_path / "exact", megatron_lines(falling(20))).series["loss"].quantum <= 1e-5


def test_csv_of_any_separator_and_of_exports(tmp_path: Path) -> None:
    plain = read(tmp_path / "a.csv", "step,loss,grad_norm,note\n0,2.5,1,x\n1,2.4,,y\n2,nan,3,z\n")
    german = read(tmp_path / "b.csv", "iteration;lm loss\n0;2.5\n1;2.4\n")
    wandb = read(tmp_path / "c.csv", '"Step","ab - train/loss","ab - train/loss__MIN"\n"0","2.5","2"\n"1","2.4","2"\n')
    board = read(tmp_path / "run-x-tag-lm loss.csv", "Wall time,Step,Value\n1.0,0,2.5\n2.0,1,2.4\n")

    assert plain.series["loss"].values[:2].tolist() == [2.5, 2.4]
    assert plain.series["grad_norm"].steps.tolist() == [0, 2]
    assert plain.problems == ("'note' of a line is not a number (×3)",)
    for curve in (german, wandb, board):
        assert curve.kind == "csv"
        assert curve.series["loss"].values.tolist() == [2.5, 2.4]
        assert set(curve.series) == {"loss"}


def test_json_lines_with_and_without_a_step(tmp_path: Path) -> None:
    rows = '{"step": 4, "train": {"loss": 2.5}, "grad_norm": "NaN"}\n{"step": 5, "train": {"loss": NaN}}\nbroken\n'
    curve = read(tmp_path / "a.jsonl", rows)
    without = read(tmp_path / "b.jsonl", '{"loss": 3.0}\n{"loss": 2.0}\n')

    assert curve.kind == "jsonl"
    assert curve.series["loss"].steps.tolist() == [4, 5]
    assert curve.problems == ("a line is no JSON object and was left out",)
    assert without.series["loss"].steps.tolist() == [0, 1]
    assert "counted from 0" in without.problems[0]


@pytest.mark.parametrize(
    "content",
    [b"", b"hello\n", b"\x00" * 100, b"{", b"[" * 100_000, b'{"log_history": ', b'{"log_history": 3}', b"a,b\n1,2\n",
     b'{"a": 1}', b"step,loss\n", b"\xff\xfe" * 50, b":W&B" + b"\x00" * 3 + b"\xff" * 50_000],
)  # fmt: skip
def test_garbage_gives_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "log"
    path.write_bytes(content)

    found = outcome(path)

    if isinstance(found, Curve):
        assert "loss" not in found.series
    else:
        assert found.exit_code == 4
        assert str(path) in str(found)


@given(st.binary(max_size=600), st.sampled_from([None, *sorted(READERS.entries())]))
def test_no_bytes_make_a_traceback(tmp_path_factory: pytest.TempPathFactory, content: bytes, kind: str | None) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "log"
    heads = {
        "wandb": b":W&B\xe1\xbe\x00",
        "csv": b"step,loss\n",
        "jsonl": b'{"step":1}\n',
        "megatron": b" iteration 1/ 2 |",
    }
    path.write_bytes(heads.get(kind or "", b"") + content)

    found = outcome(path, kind)

    assert found.n_points > 0 if isinstance(found, Curve) else found.what


@given(st.data())
def test_a_log_cut_or_changed_anywhere_is_still_no_traceback(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    text = bytearray((megatron_lines(falling(4)) + "\n".join(MINDFORMERS.values())).encode())
    for _ in range(data.draw(st.integers(0, 5))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("fuzz") / "log"
    path.write_bytes(bytes(text[: data.draw(st.integers(0, len(text)))]))

    found = outcome(path)

    assert found.n_points > 0 if isinstance(found, Curve) else found.what


def test_a_missing_path_and_an_unknown_kind(tmp_path: Path) -> None:
    with pytest.raises(NoRecordingError, match="cannot be opened"):
        read_curve(tmp_path / "nowhere")
    with pytest.raises(UnknownNameError, match="no kind of log is called 'excel'"):
        read_curve(tmp_path, kind="excel")


def test_kind_overrides_the_guess(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("step,loss\n1,2.0\n iteration 7/ 9 | lm loss: 1.0 |\n", encoding="utf-8")

    assert read_curve(path, kind="csv").series["loss"].steps.tolist() == [1]
    assert read_curve(path, kind="megatron").series["loss"].steps.tolist() == [6]


def test_every_reader_says_what_it_reads() -> None:
    assert READERS.broken == []
    for entry in READERS.entries().values():
        assert len(entry.about) > 20


TRAINER = {
    "4": "{'loss': 2.5, 'grad_norm': 1.25, 'learning_rate': 5e-05, 'epoch': 0.1}",
    "5": "{'loss': '2.5', 'grad_norm': '1.25', 'learning_rate': '5e-05', 'epoch': '0.1'}",
    "beside a bar": " 10%|█         | 10/100 [00:01<00:09]\r{'loss': 2.5, 'grad_norm': 1.25, 'learning_rate': 5e-05, "
    "'epoch': 0.1}\r 11%|",
}


@pytest.mark.parametrize("line", TRAINER.values(), ids=TRAINER)
def test_what_the_trainer_prints(tmp_path: Path, line: str) -> None:
    second = line.replace("2.5", "nan").replace("0.1", "0.2")
    more = "{'eval_loss': 9.0, 'epoch': 0.1}", "{'train_runtime': 3.1, 'train_loss': 2.0}"
    text = "\n".join(["loading", line, more[0], second, more[1]])

    curve = read(tmp_path / "log.txt", text)

    assert curve.kind == "trainer_console"
    assert curve.series["loss"].steps.tolist() == [0, 1]
    assert curve.series["loss"].values[0] == 2.5
    assert str(curve.series["loss"].values[1]) == "nan"
    assert curve.series["grad_norm"].values.tolist() == [1.25, 1.25]
    assert curve.series["lr"].values.tolist() == [5e-05, 5e-05]
    assert any("carry no step" in problem for problem in curve.problems)
