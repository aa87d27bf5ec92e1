"""A real client speaks to `hypocenter mcp` over stdin and stdout, and finds what is wrong through the tools alone."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import casebook
import jsonschema
import pytest
import warm

from hypocenter.cli.agents.tools import TOOLS
from hypocenter.cli.commands.replay import Replayed
from hypocenter.json_answer import published

if TYPE_CHECKING:  # it takes a second, and each worker collects this file
    from mcp import ClientSession

GALLERY = Path(__file__).resolve().parents[2] / "gallery"
TEN = (
    "a01_ffn_output_overflow", "a05_rmsnorm_variance", "a08_fully_masked_softmax", "b01_where_sqrt", "b02_norm_at_zero",
    "c07_underflow_without_scaling", "d01_bf16_weights_stand_still", "f07_loss_times_mask", "x01_nan_in_batch",
    "x05_empty_mean_pooling",
)  # fmt: skip
CASES = {case.id: case for case in casebook.faults(GALLERY) if case.id in TEN}
Ask = Callable[..., Awaitable[Any]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten recordings, in forks; nothing of their diagnosis is left for a client to find."""
    folder = tmp_path_factory.mktemp("gallery").resolve()
    for case in CASES.values():
        out = folder / case.id
        words = [sys.executable, "-m", "hypocenter", "run", "--out", str(out), "--level", case.level, *case.program]
        warm.run(words, timeout=casebook.SECONDS, env=casebook.environment(), cwd=folder)
        (out / "diagnosis.json").unlink()
    return folder


def spoken(root: Path, talk: Callable[[Ask, ClientSession], Awaitable[None]]) -> None:
    """Start the server for one root, and let a client talk with it."""
    from mcp import ClientSession, StdioServerParameters, stdio_client

    words = ["-m", "hypocenter", "mcp", str(root)]
    server = StdioServerParameters(command=sys.executable, args=words, env=casebook.environment())

    async def main() -> None:
        with Path(os.devnull).open("w") as nowhere:
            async with stdio_client(server, errlog=nowhere) as streams, ClientSession(*streams) as session:
                await session.initialize()

                async def ask(tool: str, **arguments: Any) -> Any:
                    found = await session.call_tool(tool, arguments)
                    (content,) = found.content
                    return content.text if found.is_error else json.loads(content.text)

                await talk(ask, session)

    anyio.run(main)


def test_a_scripted_client_finds_the_culprits_of_ten_runs(runs: Path) -> None:
    wrong: dict[str, list[str]] = {}

    async def talk(ask: Ask, _session: ClientSession) -> None:
        listed = await ask("runs", folder=".")
        for each in listed["answer"]["runs"]:
            told = await ask("check", run=each["path"])
            first = told["answer"]["findings"][0]
            page = await ask("explain", name=first["code"])
            assert isinstance(page, dict), page
            case = CASES[Path(each["path"]).name]
            outcome = casebook.Outcome(exit_code=0, diagnosis=told["answer"], stdout="", stderr="")
            wrong[case.id] = casebook.mismatches(case, outcome)
            wrong[case.id] += [] if first["rank"] == 0 and (told["exit_code"], page["exit_code"]) == (1, 0) else [told]

    spoken(runs, talk)

    assert len(wrong) == 10
    assert wrong == {case: [] for case in wrong}


def test_the_cure_the_replay_and_the_way_there_are_had_too_and_errors_are_sentences(runs: Path) -> None:
    async def talk(ask: Ask, session: ClientSession) -> None:
        run = "a01_ffn_output_overflow"
        bundle = (await ask("check", run=run))["answer"]["findings"][0]["bundle"]
        cured = await ask("cure", run=run)
        again = await ask("replay", bundle=f"{run}/{bundle}")
        frames = await ask("show", run=run, frames=3)
        other = await ask("curves", baseline=run, candidate="x01_nan_in_batch")
        errors = [await ask("check", run="../x"), await ask("check", run="nothing"), await ask("none")]
        tools = (await session.list_tools()).tools

        jsonschema.validate(again["answer"], published(Replayed))
        assert (cured["answer"]["status"], cured["answer"]["verified"]) == ("cured", True)
        assert (again["answer"]["status"], again["exit_code"]) == ("failed-again", 0)
        assert len(frames["answer"]["frames"]["frames"]) == 3
        assert other["answer"]["schema"] == "hypocenter.curves/1"
        starts = ("this may not be read: ../x (", "no recording found: ", "no tool 'none' (")
        assert all(error.startswith(start) for error, start in zip(errors, starts, strict=True)), errors
        assert [tool.name for tool in tools] == [tool.command for tool in TOOLS]
        assert all(tool.description and tool.input_schema["type"] == "object" for tool in tools)

    spoken(runs, talk)
