"""The tools over stdin and stdout, spoken in the Model Context Protocol. Needs the extra `mcp`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from hypocenter import __version__
from hypocenter.cli.agents.skill import skill
from hypocenter.cli.agents.tools import TOOLS, call, described, input_schema, sentence
from hypocenter.errors import HypocenterError
from hypocenter.json_answer import to_json


def serve(roots: Sequence[Path]) -> None:
    """Answer agents until stdin is closed.

    Args:
        roots: resolved folders below which may be read.
    """
    anyio.run(_serve, roots)


async def _serve(roots: Sequence[Path]) -> None:
    one_at_a_time = anyio.CapacityLimiter(1)  # commands print to the one stdout of a process

    async def listed(_context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_tool(tool) for tool in TOOLS])

    async def called(_context: Any, params: types.CallToolRequestParams) -> types.CallToolResult:
        return await anyio.to_thread.run_sync(
            _called, params.name, params.arguments or {}, roots, limiter=one_at_a_time
        )

    server = Server("hypocenter", version=__version__, instructions=skill(), on_list_tools=listed, on_call_tool=called)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def _tool(tool: Any) -> types.Tool:
    return types.Tool(
        name=tool.command,
        description=described(tool),
        input_schema=input_schema(tool),
        annotations=types.ToolAnnotations(
            read_only_hint=tool.is_read_only, destructive_hint=False, idempotent_hint=True, open_world_hint=False
        ),
    )


def _called(name: str, arguments: dict[str, Any], roots: Sequence[Path]) -> types.CallToolResult:
    try:
        text, is_error = json.dumps(json.loads(to_json(call(name, arguments, roots))), ensure_ascii=False), False
    except HypocenterError as error:
        text, is_error = sentence(error), True
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=is_error)
