"""The screen, the JSON and the Markdown of a checklist."""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import pytest
from rich.cells import cell_len

from hypocenter.checklist.checklist import Checklist, Configuration, Row, Setting, Value
from hypocenter.checklist.compare import compare
from hypocenter.checklist.items.item import load
from hypocenter.json_answer import published
from hypocenter.report.checklist import json as as_json
from hypocenter.report.checklist import markdown, terminal
from hypocenter.report.screen import Screen

ITEMS = load()


def side(label: str, kind: str, values: dict[str, Value], **settings: Setting) -> Configuration:
    said = {
        item: Setting(item=item, value=value, spelled=f"{item.partition('.')[2]}: {value}", where=f"{label}:{i + 7}")
        for i, (item, value) in enumerate(values.items())
    }
    more = {setting.item: setting for setting in settings.values()}
    unknown = tuple(Setting(item="", value=i, spelled=f"odd_{i}: {i}", where=f"{label}:90") for i in range(10))
    return Configuration(label=label, kinds=(kind,), settings={**said, **more}, unknown=unknown, notes=("a note",))


def made() -> Checklist:
    eps = Setting(item="model.norm_eps", value=1e-5, spelled="", assumed="Megatron-LM core_v0.12")
    heads = Setting(item="model.head_dim", value=128, spelled="", derived="hidden_size / num_attention_heads")
    lost = Setting(
        item="optimizer.lr", value=None, spelled="--lr $LR", where="run.sh:4", unresolved="--lr $LR: unknown"
    )
    one = side(
        "run.sh", "megatron-shell",
        {"model.num_layers": 2, "optimizer.beta2": 0.95, "model.hidden_dropout": 0.1, "model.activation": "swiglu",
         "data.template": "<s>[INST] {} [/INST] " * 8, "model.rope_theta": 10000.0, "model.head_dim": 128},
        eps=eps, lost=lost,
    )  # fmt: skip
    other = side(
        "run.yaml", "mindformers-yaml",
        {"model.num_layers": 2, "optimizer.beta2": 0.999, "model.hidden_dropout": 0.1, "model.activation": "silu",
         "model.norm_eps": 1e-6, "optimizer.lr": 1e-5, "data.template": "{}", "data.eos_token_id": (2, 32001)},
        heads=heads,
    )  # fmt: skip
    return compare(one, other, ITEMS, samples=["baseline, step 0, sample 0: Once upon a time"])


FOUND = made()


def shown(width: int = 100, *, all_rows: bool = False, has_unicode: bool = True, colour: bool = False) -> str:
    view = terminal.View(
        screen=Screen(width=width, colour=colour), all_rows=all_rows, has_unicode=has_unicode, headings=ITEMS.groups
    )
    return terminal.render(FOUND, view)


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_no_line_is_wider_than_the_screen(width: int) -> None:
    wide = [line for line in shown(width, all_rows=True).splitlines() if cell_len(line) > width]

    assert wide == []


def test_screen_says_what_differs_why_where_and_what_to_type() -> None:
    text = shown()
    lines = text.splitlines()

    assert lines[0].startswith("different in 3 of 7 items: epsilon of the normalisation, beta2 of Adam")
    assert "   --> baseline:  run.sh (megatron-shell)" in lines
    at = next(i for i, line in enumerate(lines) if line.startswith("  ✗ beta2 of Adam"))
    assert lines[at].split()[-2:] == ["0.95", "0.999"]
    assert lines[at + 1].startswith("      the running mean of squared gradients")
    assert lines[at + 3 : at + 6] == [
        "      baseline:  run.sh:8  beta2: 0.95",
        "      candidate: run.yaml:8  beta2: 0.999",
        "      fix:       run.yaml:8  beta2: 0.95",
    ]
    assert "default of Megatron-LM core_v0.12" in text
    assert "1e-05 (default)" in text
    assert "128 (computed)" not in text
    assert "128 (computed)" in shown(all_rows=True)


def test_screen_counts_what_it_leaves_out() -> None:
    lines = shown().splitlines()

    assert "not understood, of the candidate: 10 keys" in lines
    assert "    2 keys not shown, see them with --all or --json" in lines
    assert lines[-1].startswith("2 rows not shown, see them with --all; ")
    assert "transformer layers" not in "\n".join(lines)
    assert "transformer layers" in shown(all_rows=True)
    assert "odd_9" in shown(all_rows=True)


def test_columns_stand_below_each_other() -> None:
    lines = [line for line in shown().splitlines() if line.startswith(("  ✗", "  ≈", "  <", "  >", "  !", "  ?"))]
    head = next(line for line in shown().splitlines() if line.rstrip().endswith("candidate"))

    starts = {line[head.index("candidate") - 1 : head.index("candidate") + 1] for line in lines}
    assert all(start[0] == " " and start[1] != " " for start in starts)


def test_remarks_stand_with_agreement() -> None:
    lines = shown().splitlines()

    at = next(i for i, line in enumerate(lines) if line.startswith("  ! dropout on the residual stream"))
    assert lines[at + 1].startswith("      dropout is on")
    assert lines[at + 2].startswith("      fix: switch it off")


def test_screen_is_readable_without_colour_and_without_unicode() -> None:
    plain = shown(has_unicode=False)

    assert "\x1b" not in shown()
    assert "\x1b[" in shown(colour=True)
    assert "✗" not in plain
    assert "≈" not in plain
    assert "  x beta2 of Adam" in plain


def test_json_is_what_the_schema_says_and_holds_all() -> None:
    answer = json.loads(as_json.render(FOUND))

    jsonschema.validate(answer, published(as_json.Compared))
    assert answer["schema"] == "hypocenter.checklist/1"
    assert len(answer["rows"]) == len(FOUND.rows)
    assert {"item", "baseline", "candidate", "verdict", "severity", "why"} <= set(answer["rows"][0])
    assert len(answer["unknown"]["candidate"]) == 10
    eps = next(row for row in answer["rows"] if row["item"] == "model.norm_eps")
    assert (eps["assumed"], eps["baseline_setting"]["assumed"]) == (True, "Megatron-LM core_v0.12")


def test_json_takes_numbers_that_are_not_finite() -> None:
    strange = Row(
        item="data.x", title="x", group="data", baseline=float("nan"), candidate=float("inf"), verdict="different",
        severity="error", why="w",
    )  # fmt: skip

    answer = json.loads(as_json.render(replace(FOUND, rows=(strange,))))

    jsonschema.validate(answer, published(as_json.Compared))
    assert answer["rows"][0]["baseline"] == "NaN"


def test_markdown_is_tables_whose_cells_do_not_break() -> None:
    text = markdown.render(FOUND, headings=ITEMS.groups)

    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert text.startswith("**different in 3 of 7 items")
    assert "### optimizer and batch" in text
    assert all(line.replace("\\|", "").count("|") == 6 for line in rows)


def test_a_hostile_value_stays_on_its_line() -> None:
    setting = Setting(item="data.template", value="a\x1b[31m\nb|c", spelled="t: a\x1b[31m\nb", where="x\n.yaml:1")

    assert "\x1b" not in terminal.value(setting) + terminal.place(setting)
    assert "\n" not in terminal.value(setting) + terminal.place(setting)
