"""The pages and their parts over HTTP. All that a handler does is to look up what the watcher has made."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from hypocenter import __version__
from hypocenter.compare.curves.curve import Curve, Series
from hypocenter.compare.curves.of_runs import drawn
from hypocenter.errors import HypocenterError
from hypocenter.nouns import StepRecord
from hypocenter.report import curves_picture, wording
from hypocenter.report import page as report_page
from hypocenter.report.page.document import file_text, shell
from hypocenter.view import page
from hypocenter.view.findings import MOST_RECORDED_BYTES, holds_links, in_child, recorded_bytes
from hypocenter.view.following import FollowedRun
from hypocenter.view.overview import overview_shown
from hypocenter.view.shown import PARTS, Piece, Shown
from hypocenter.view.watcher import Watched, Watcher

_FIRST_S = 0.1  # that a page waits for the first look; a large job is shown as far as it is read
_AGAIN_S = 1.0  # between two comparisons of the same two runs
_MOST_KEPT = 4  # rendered pages


class Pages:
    """The web application that serves the pages of runs.

    Args:
        watcher: follows the runs.
    """

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._heavy = asyncio.Lock()
        self._kept: dict[tuple[str, ...], tuple[tuple[int, ...], bytes]] = {}
        self._both: dict[tuple[Path, Path], tuple[float, tuple[int, int], Shown]] = {}
        self._overview: tuple[float, Shown] | None = None
        self._assets = {
            "page.css": ("text/css", Piece(_styles().encode())),
            "curves.js": ("text/javascript", Piece(file_text(report_page.__name__, "curves.js").encode())),
            "live.js": ("text/javascript", Piece(file_text(page.__name__, "live.js").encode())),
        }

    def app(self) -> Starlette:
        """Return the application; an address names runs and parts by words that are looked up, never by paths."""
        return Starlette(routes=[
            Route("/", self._list), Route("/state", self._list_state), Route("/part/{part}", self._list_part),
            Route("/run/{name}", self._run), Route("/run/{name}/state", self._run_state),
            Route("/run/{name}/part/{part}", self._run_part), Route("/run/{name}/report", self._report),
            Route("/compare", self._chosen), Route("/compare/{a}/{b}", self._compare),
            Route("/compare/{a}/{b}/state", self._compare_state),
            Route("/compare/{a}/{b}/part/{part}", self._compare_part), Route("/compare/{a}/{b}/diff", self._diff),
            Route("/assets/{name}", self._asset),
        ])  # fmt: skip

    async def _list(self, request: Request) -> Response:
        self._watcher.glances()
        await _until(self._watcher.glances_ready.is_set)
        return self._page(self._listed(), heading=_where(self._watcher), source="", root="", links=[])

    async def _list_state(self, request: Request) -> Response:
        return _answer(request, self._listed().state, "application/json")

    async def _list_part(self, request: Request) -> Response:
        return _part(request, self._listed())

    def _listed(self) -> Shown:
        now_s = time.monotonic()
        if self._overview is None or now_s - self._overview[0] > _AGAIN_S:
            runs = self._watcher.glances()
            n_coming = len(self._watcher.names()) - len(runs)
            self._overview = now_s, overview_shown(runs, self._watcher.runs.n_hidden, n_coming)
        return self._overview[1]

    async def _run(self, request: Request) -> Response:
        name, path = self._path(request, "name")
        found = await self._shown(path)
        links = [("full report", f"{name}/report")]
        return self._page(found, heading=wording.clean(path.name, 60), source=f"run/{name}", root="../", links=links)

    async def _run_state(self, request: Request) -> Response:
        return _answer(request, (await self._shown(self._path(request, "name")[1])).state, "application/json")

    async def _run_part(self, request: Request) -> Response:
        return _part(request, await self._shown(self._path(request, "name")[1]))

    async def _shown(self, path: Path) -> Shown:
        watched = await self._watched(path)
        return watched.now or Shown(parts={}, title="reading", turn="", is_over=False)

    async def _watched(self, path: Path) -> Watched:
        watched = self._watcher.watch(path)
        if watched.now is None:
            await _until(watched.ready.is_set)
        return watched

    async def _chosen(self, request: Request) -> Response:
        names = request.query_params.get("a", ""), request.query_params.get("b", "")
        if not all(name in self._watcher.names() for name in names):
            raise HTTPException(404)
        return RedirectResponse(f"compare/{names[0]}/{names[1]}", status_code=303)

    async def _compare(self, request: Request) -> Response:
        a, b = self._path(request, "a"), self._path(request, "b")
        heading = f"{wording.clean(b[1].name, 40)} against {wording.clean(a[1].name, 40)}"
        links = [("tensor by tensor", f"{b[0]}/diff"), ("the other way round", f"../{b[0]}/{a[0]}")]
        links += [(wording.clean(one[1].name, 30), f"../../run/{one[0]}") for one in (a, b)]
        return self._page(
            await self._compared(a[1], b[1]),
            heading=heading,
            source=f"compare/{a[0]}/{b[0]}",
            root="../../",
            links=links,
        )

    async def _compare_state(self, request: Request) -> Response:
        found = await self._compared(self._path(request, "a")[1], self._path(request, "b")[1])
        return _answer(request, found.state, "application/json")

    async def _compare_part(self, request: Request) -> Response:
        return _part(request, await self._compared(self._path(request, "a")[1], self._path(request, "b")[1]))

    async def _compared(self, baseline: Path, candidate: Path) -> Shown:
        runs = [(await self._watched(path)).run for path in (baseline, candidate)]
        versions, key = (runs[0].version, runs[1].version), (baseline, candidate)
        kept = self._both.get(key)
        if kept is not None and (kept[1] == versions or time.monotonic() - kept[0] < _AGAIN_S):
            return kept[2]
        async with self._heavy:
            found = await run_in_threadpool(both_shown, runs[0], runs[1])
        self._both[key] = time.monotonic(), versions, found
        while len(self._both) > _MOST_KEPT:
            del self._both[next(iter(self._both))]
        return found

    async def _report(self, request: Request) -> Response:
        return await self._from_child("report", self._path(request, "name")[1])

    async def _diff(self, request: Request) -> Response:
        return await self._from_child("diff", self._path(request, "a")[1], self._path(request, "b")[1])

    async def _from_child(self, what: str, *paths: Path) -> Response:
        """Return a page that needs all rows; its own policy forbids it to load anything."""
        size = sum([await run_in_threadpool(recorded_bytes, path) for path in paths])
        if any([await run_in_threadpool(holds_links, path) for path in paths]):
            return PlainTextResponse("a run holds links, which are not followed here\n", status_code=503)
        words = wording.command(what, *map(str, paths), *(["--report", "OUT.html"] if what == "diff" else []))
        if size > MOST_RECORDED_BYTES:
            return PlainTextResponse(f"{size >> 20:,} MiB are more than is read here; type: {words}\n", status_code=503)
        key = (what, *map(str, paths))
        versions = tuple([(await self._watched(path)).run.version for path in paths])
        async with self._heavy:
            kept = self._kept.get(key)
            if kept is None or kept[0] != versions:
                try:
                    data = await run_in_threadpool(in_child, *key)
                except (OSError, subprocess.SubprocessError):
                    return PlainTextResponse(f"this page could not be made; type: {words}\n", status_code=503)
                self._kept.pop(key, None)
                self._kept[key] = kept = versions, data
                while len(self._kept) > _MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
        headers = {"Content-Security-Policy": "frame-ancestors 'none'", "Cache-Control": "no-store"}
        return Response(kept[1], media_type="text/html", headers=headers)

    async def _asset(self, request: Request) -> Response:
        found = self._assets.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return _answer(request, found[1], found[0])

    def _path(self, request: Request, name: str) -> tuple[str, Path]:
        """Return the name and directory of the run that an address names."""
        word = request.path_params[name]
        path = self._watcher.names().get(word)
        if path is None:
            raise HTTPException(404, "no such run here")
        return word, path

    def _page(
        self, found: Shown, *, heading: str, source: str, root: str, links: Sequence[tuple[str, str]]
    ) -> Response:
        names = list(found.parts) or list(PARTS)
        none = Piece(b"")
        parts = [
            (name, Markup(piece.data.decode()), piece.tag) for name in names for piece in [found.parts.get(name, none)]
        ]
        text = shell(page.__name__, "shell.html.j2").render(
            title=found.title, heading=heading, root=root, source=f"{root}{source}" if source else ".", turn=found.turn,
            parts=parts, links=[(href, text) for text, href in links], version=__version__,
            host=wording.clean(socket.gethostname()), where=_where(self._watcher),
        )  # fmt: skip
        return Response(text.encode(), media_type="text/html", headers={"Cache-Control": "no-store"})


def _where(watcher: Watcher) -> str:
    return wording.clean(watcher.runs.where, 120)


def _styles() -> str:
    shared = [file_text(report_page.__name__, "style.css"), file_text(page.__name__, "view.css")]
    return "\n".join([*shared, curves_picture.STYLE])


def _part(request: Request, found: Shown) -> Response:
    piece = found.parts.get(request.path_params["part"])
    if piece is None:
        raise HTTPException(404)
    return _answer(request, piece, "text/html")


def _answer(request: Request, piece: Piece, kind: str) -> Response:
    """Return the piece, compressed if the browser takes that; an empty 304 if the browser has it already."""
    headers = {"ETag": f'"{piece.tag}"', "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
    if piece.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", "") and len(piece.data) > 500:
        return Response(piece.zipped, media_type=kind, headers={**headers, "Content-Encoding": "gzip"})
    return Response(piece.data, media_type=kind, headers=headers)


async def _until(is_so: object, most_s: float = _FIRST_S) -> None:
    end = time.monotonic() + most_s
    while not is_so() and time.monotonic() < end:  # type: ignore[operator]
        await asyncio.sleep(0.01)


_KINDS = {"accepted": "healthy", "departed": "error", "cannot-tell": "cannot-tell"}
_QUANTITIES: dict[str, Callable[[StepRecord], float | None]] = {
    "loss": lambda record: record.loss,
    "grad_norm": lambda record: record.grad_norm,
    "lr": lambda record: record.lr,
}


def both_shown(baseline: FollowedRun, candidate: FollowedRun) -> Shown:
    """Return the page of two runs as they are now."""
    sentence, kind = "there are no two steps yet that both have", "note"
    try:
        found = drawn(curve_of(baseline), curve_of(candidate))
    except (HypocenterError, ValueError):
        found = ()
    drawings = [
        (one.name, Markup(curves_picture.inline(one.found, name=one.name, is_titled=at > 0)))  # the card is its title
        for at, one in enumerate(found)
    ]
    if found:
        kind = _KINDS.get(found[0].found.status, "note")
        sentence = wording.sentence(found[0].found.sentence)
    html = shell(page.__name__, "parts.html.j2").module.both(sentence, kind, drawings)  # pyright: ignore
    names = " against ".join(wording.clean(run.directory.name, 40) for run in (candidate, baseline))
    is_over = not baseline.is_running and not candidate.is_running
    return Shown(parts={"both": Piece(str(html).encode())}, title=names, turn="", is_over=is_over)


def curve_of(run: FollowedRun) -> Curve:
    """Return loss, gradient norm and learning rate, as far as they were kept."""
    records = run.course.records()
    series: dict[str, Series] = {}
    for name, of in _QUANTITIES.items():
        points = [(record.step, value) for record in records if (value := of(record)) is not None]
        if points:
            steps, values = zip(*points, strict=True)
            series[name] = Series(name=name, steps=np.array(steps, np.int64), values=np.array(values, np.float64))
    return Curve(source=str(run.directory), kind="recording", series=series, counts_from=0)
