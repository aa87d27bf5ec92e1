"""`hypocenter headroom`."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ElementTree
from html import unescape
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from recordings import record, run

from hypocenter.json_answer import published
from hypocenter.nouns import Reading, StepRecord, Summary
from hypocenter.record.run_file import finish_run, start_run
from hypocenter.record.writer import Writer
from hypocenter.report.headroom.json import Headroom
from hypocenter.report.headroom.scaled import ScaledHeadroom
from hypocenter.summary.reducers.numpy import summarize


def recorded(path: Path, *, scale: float | None = 1024.0, level: str = "modules") -> Path:
    """Three steps in bfloat16: two modules, their gradients, one parameter."""
    start_run(path, ["python", "train.py"], {"level": level}, 1, {"hypocenter": "0"})
    writer = Writer(path, rank=0, warn=lambda text: pytest.fail(text))
    for step in range(3):
        carried = scale or 1.0
        values = {
            ("forward", "up", "out[0]"): np.array([1.0, 2.0 ** (14 + step)]),
            ("forward", "down", "out[0]"): np.array([0.5, 4.0]),
            ("backward", "down", "grad_out[0]"): np.array([1e-9, 1e-3, 1.0, 0.25]) * carried,
            ("param", "up.weight", "value"): np.array([0.1, 0.2]),
        }
        rows = [
            Reading(
                step=step, microbatch=0, phase=phase, site=site, port=port, order=i, dtype="bfloat16",  # type: ignore[arg-type]
                shape=x.shape, summary=summarize(x),
            )
            for i, ((phase, site, port), x) in enumerate(values.items())
        ]  # fmt: skip
        writer.write(rows, StepRecord(step=step, loss=1.0, grad_norm=1.0, loss_scale=scale))
    writer.close()
    finish_run(path, "finished", 0)
    return path


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp("runs") / "r")


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(published(Headroom))


def test_what_float16_would_do_is_said_in_a_sentence_and_a_table(recording: Path) -> None:
    said = run("headroom", recording, "--scale", 65536)

    lines = said.out.splitlines()
    assert said.code == 1
    assert " ".join(said.out.partition("\n\n")[0].split()) == (
        "in float16 at scale 65,536: 2 of 4 sites would overflow, first up out[0] (largest at step 2); 0 % of "
        "gradients would become zero"
    )
    assert any(line.startswith("forward: 2 sites, 1 overflow") for line in lines)
    assert any("down grad_out[0]" in line for line in lines)
    assert said.err == f"next: hypocenter show {recording} --site up --values\n"


def test_the_recorded_scale_is_the_default(recording: Path) -> None:
    said = run("headroom", recording, "--phase", "backward")

    assert said.code == 0
    assert said.out.startswith("in float16 at the recorded scale (1,024): none of 1 site would overflow; 0 % of")
    assert "loss scales that lose no recorded gradient in float16: 2^5 (32) to 2^15 (32,768)" in said.out


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        (("--format", "bf16"), 0, "in bfloat16 at the recorded scale (1,024): none of 4 sites"),
        (("--format", "fp8_e4m3fn"), 1, "in float8_e4m3fn at the recorded scale (1,024): 2 of 4 sites"),
        (("--steps", "0-1", "--phase", "forward"), 0, "in float16: none of 2 sites would overflow"),
        (("--step", 2, "--phase", "forward"), 1, "in float16: 1 of 2 sites would overflow, first up out[0]"),
        (("--site", "down", "--scale", "0.001"), 0, "25 % of gradients would become zero"),
    ],
)
def test_options_choose(recording: Path, options: tuple[object, ...], code: int, text: str) -> None:
    said = run("headroom", recording, *options)

    assert said.code == code
    assert text in " ".join(said.out.split())


def test_json_has_everything_and_validates(recording: Path) -> None:
    said = run("headroom", recording, "--scale", 65536, "--json")

    found = json.loads(said.out)
    jsonschema.Draft202012Validator(published(Headroom)).validate(found)
    assert (said.code, said.err) == (1, "")
    assert (found["schema"], found["status"], found["scale"]) == ("hypocenter.headroom/1", "overflows", 65536.0)
    assert [(s["phase"], s["site"], s["overflows"]) for s in found["sites"]] == [
        ("forward", "up", True), ("forward", "down", False), ("param", "up.weight", False), ("backward", "down", True),
    ]  # fmt: skip
    assert found["first"]["site"] == "up"
    assert found["window"]["highest_site"] == "down grad_out[0]"


def test_a_sentinel_recording_says_what_it_cannot_tell_and_how_to_record_more(tmp_path: Path) -> None:
    path = tmp_path / "r"
    start_run(path, ["python"], {"level": "sentinel"}, 1, {})
    writer = Writer(path, rank=0, warn=lambda text: pytest.fail(text))
    from hypocenter.nouns import Summary

    norm = Summary(n=10**6, sumsq=1e4)
    writer.write(
        [Reading(step=0, microbatch=0, phase="grad", site="w", port="grad", order=0, dtype="float32", summary=norm)],
        StepRecord(step=0, loss=1.0, grad_norm=100.0),
    )
    writer.close()
    finish_run(path, "finished", 0)

    said = run("headroom", path, "--scale", 65536)

    assert said.code == 5
    assert "cannot tell whether any of 1 site would overflow" in said.out
    assert "-6.6 to 3.3 bits" in said.out
    assert "record more with --level modules" in " ".join(said.out.split())


def test_a_picture_is_written_once(recording: Path, tmp_path: Path) -> None:
    for name in ("h.svg", "h.html"):
        said = run("headroom", recording, "-o", tmp_path / name)
        again = run("headroom", recording, "-o", tmp_path / name)
        forced = run("headroom", recording, "-o", tmp_path / name, "--force")

        assert said.err.startswith(f"wrote {tmp_path / name} (")
        assert again.code == 2
        assert "error[already-exists]" in again.err
        assert forced.code == said.code == 1
    ElementTree.parse(tmp_path / "h.svg")
    assert "default-src 'none'" in unescape((tmp_path / "h.html").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--format", "fp12"), "error[unknown-name]: unknown floating-point format 'fp12'"),
        (("--scale", "0"), "error[bad-option]: a loss scale of 0.0\n  --> --scale"),
        (("--scale", "inf"), "a loss scale of inf"),
        (("--scale", "nan"), "a loss scale of nan"),
        (("--step", "1", "--steps", "0-1"), "--step and --steps exclude each other"),
        (("--steps", "sometimes"), "schedule 'sometimes' is not understood"),
        (("--steps", "90-99"), "nothing was recorded at steps 90-99"),
        (("--step", "99"), "the recording has steps 0 to 2"),
        (("--site", "dwon"), "did you mean 'down'?"),
        (("--phase", "sideways"), "sideways"),
        (("-o", "picture.png"), "no picture is called 'picture.png'"),
        (("-o", "missing/x.svg"), "the picture cannot be written"),
    ],
)
def test_bad_input_is_one_clear_error(recording: Path, options: tuple[str, ...], text: str) -> None:
    said = run("headroom", recording, *options)

    assert said.code == 2
    assert text in said.err
    assert "Traceback" not in said.err


def test_no_recording_exits_with_4(tmp_path: Path) -> None:
    assert run("headroom", tmp_path / "nothing").code == 4


def test_a_float16_run_says_what_it_cannot_see(tmp_path: Path) -> None:
    said = run("headroom", record(tmp_path / "r"))

    text = " ".join(said.out.split())
    assert said.code == 1
    assert text.startswith("in float16: none of 3 sites would overflow, 1 was NaN or infinite as recorded")
    assert "recorded as NaN or infinite are left out of the numbers, in 1 of 3 sites, encoder.ff out[0] first" in text


CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")
def test_the_page_is_silent_and_loads_nothing(recording: Path, tmp_path: Path) -> None:
    sync_api = pytest.importorskip("playwright.sync_api")
    run("headroom", recording, "-o", tmp_path / "h.html")
    complaints: list[str] = []

    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("request", lambda r: complaints.append(r.url) if not r.url.startswith("file:") else None)
        page.goto(f"file://{tmp_path / 'h.html'}")
        drawn = page.eval_on_selector_all("svg.cells path.overflow", "all => all.map(r => getComputedStyle(r).fill)")
        browser.close()

    assert complaints == []
    assert set(drawn) == {"rgb(196, 43, 36)"}, "styles apply under the policy"


def scaled(path: Path) -> Path:
    """Two steps: values that lie in one octave, and one with an outlier; gradients."""
    start_run(path, ["python", "train.py"], {"level": "modules"}, 1, {"hypocenter": "0"})
    writer = Writer(path, rank=0, warn=lambda text: pytest.fail(text))
    for step in range(2):
        values = {
            ("forward", "even", "out[0]"): np.linspace(1.0, 1.9, 64),
            ("forward", "outlier", "out[0]"): np.concatenate([[1000.0 * (step + 1)], np.ones(63)]),
            ("backward", "even", "grad_out[0]"): np.concatenate([[1.0], np.full(99, 2.0**-40)]),
        }
        rows = [
            Reading(
                step=step, microbatch=0, phase=phase, site=site, port=port, order=i, dtype="bfloat16",  # type: ignore[arg-type]
                shape=x.shape, summary=summarize(x),
            )
            for i, ((phase, site, port), x) in enumerate(values.items())
        ]  # fmt: skip
        writer.write(rows, StepRecord(step=step, loss=1.0, grad_norm=1.0))
    writer.close()
    finish_run(path, "finished", 0)
    return path


def test_a_format_with_scales_for_blocks_tells_bounds(tmp_path: Path) -> None:
    said = run("headroom", scaled(tmp_path / "r"), "--format", "nvfp4", "--phase", "forward")

    assert said.code == 0
    assert " ".join(said.out.split()).startswith(
        "in nvfp4: of 2 sites outlier out[0] may lose most: 0 % to 23 %, about 23 % of its nonzero values become zero"
    )
    assert "forward: 2 sites, float4_e2m1fn, blocks of 16" in said.out
    assert "the bounds hold for any arrangement" in " ".join(said.out.split())


def test_a_format_with_one_scale_a_tensor_is_exact(tmp_path: Path) -> None:
    found = json.loads(run("headroom", scaled(tmp_path / "r"), "--format", "fp8-tensor", "--json").out)

    jsonschema.validate(found, published(ScaledHeadroom))
    sites = {(site["phase"], site["site"]): site for site in found["sites"]}
    gradient = sites["backward", "even"]
    assert (gradient["element"], gradient["block"]) == ("float8_e5m2", 0)
    assert gradient["zero_at_least"] == gradient["zero_at_most"] == pytest.approx(0.99)
    assert sites["forward", "outlier"]["grown"] == 1
    assert sites["forward", "even"]["grown"] == 0


@pytest.mark.parametrize("name", ["mxfp8", "nvfp4", "fp8-block", "fp8-tensor"])
@pytest.mark.parametrize("shown", ["html", "markdown", "github"])
def test_scaled_formats_have_all_renderings(tmp_path: Path, name: str, shown: str) -> None:
    said = run("headroom", scaled(tmp_path / "r"), "--format", name, "--format", shown)

    assert said.code == 0
    assert f"in {name}: " in said.out
    assert "::error" not in said.out


@pytest.mark.parametrize("options", [("--scale", "2"), ("-o", "x.svg")])
def test_what_does_not_go_with_scales_is_refused(recording: Path, options: tuple[str, str]) -> None:
    said = run("headroom", recording, "--format", "mxfp8", *options)

    assert said.code == 2
    assert f"{options[0]} does not go with mxfp8" in said.err


def test_norms_alone_do_not_tell_what_scales_do(tmp_path: Path) -> None:
    start_run(tmp_path / "r", ["train.py"], {}, 1, {})
    writer = Writer(tmp_path / "r", rank=0, warn=lambda text: pytest.fail(text))
    row = Reading(step=0, microbatch=0, phase="grad", site="w", port="grad", order=0, dtype="float32",
                  summary=Summary(n=4, sumsq=2.0))  # fmt: skip
    writer.write([row], StepRecord(step=0, loss=1.0))
    writer.close()
    finish_run(tmp_path / "r", "finished", 0)
    said = run("headroom", tmp_path / "r", "--format", "mxfp8")

    assert said.code == 5
    assert "record them with --level modules --histogram full" in said.out
