"""A server on a socket of this machine, its token, and the address to open."""

from __future__ import annotations

import errno
import hmac
import re
import secrets
import socket
import threading
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from contextlib import suppress
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import uvicorn

from hypocenter.errors import ConfigError
from hypocenter.notify.alert import Alert
from hypocenter.view.runs import Runs
from hypocenter.view.server import Pages
from hypocenter.view.watcher import Watcher

PORT = 8765  # the first that is tried where none is given


class Server:
    """Serves pages of some runs on a port. Nothing is served before `run` or `start`.

    Args:
        paths: run directories, and folders of them.
        host: address to listen on.
        port: to listen on; 0 for any, None for 8765 or any.
        token: that opens it; a random one if not given.
        alert: takes what is to be told of.
        diagnoses: whether child processes may diagnose.

    Raises:
        NoRecordingError: a path is neither a run nor a folder.
        ConfigError: the port is taken, or the address is none of this machine.
    """

    def __init__(
        self, paths: Sequence[Path], *, host: str = "127.0.0.1", port: int | None = None, token: str | None = None,
        alert: Callable[[Alert], None] | None = None, diagnoses: bool = True,
    ) -> None:  # fmt: skip
        self.token = secrets.token_urlsafe(24) if token is None else token
        self.watcher = Watcher(Runs(paths), alert, diagnoses=diagnoses)
        self._socket = _listening(host, port)
        self.port = int(self._socket.getsockname()[1])
        self.host = "localhost" if host in ("127.0.0.1", "::1", "localhost") else host
        names = {f"[{host}]" if ":" in host else host} - {"0.0.0.0", "[::]"}
        if not is_local(host):
            names |= {socket.gethostname(), socket.getfqdn()}
        app = Guard(Pages(self.watcher).app(), self.token, names, cookie=f"hypocenter_view_{secrets.token_hex(4)}")
        self._server = uvicorn.Server(uvicorn.Config(
            app, log_level="error", access_log=False, server_header=False, proxy_headers=False, lifespan="off",
            ws="none", http="h11", loop="asyncio", limit_concurrency=1000, timeout_keep_alive=20,
            timeout_graceful_shutdown=1,
        ))  # fmt: skip

    @property
    def address(self) -> str:
        """The address to open in a browser."""
        return f"http://{self.host}:{self.port}/" + (f"?token={self.token}" if self.token else "")

    def run(self) -> None:
        """Serve until Ctrl-C or SIGTERM."""
        self.watcher.start()
        with suppress(KeyboardInterrupt):
            self._server.run(sockets=[self._socket])
        self._end()

    def start(self) -> Callable[[], None]:
        """Serve in a thread; return a function that ends it."""
        self.watcher.start()
        thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)
        thread.start()

        def end() -> None:
            self._server.should_exit = True
            thread.join(timeout=10)
            self._end()

        return end

    def _end(self) -> None:
        self.watcher.stop()
        self._socket.close()


def is_local(host: str) -> bool:
    """Return whether only this machine reaches an address."""
    return host in LOCAL or host in ("::1",) or host.startswith("127.")


def _listening(host: str, port: int | None) -> socket.socket:
    wanted = (PORT, 0) if port is None else (port,)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for one in wanted:
        try:
            return socket.create_server((host, one), family=family, backlog=512)
        except OSError as error:
            if error.errno == errno.EADDRINUSE and one != wanted[-1]:
                continue
            raise ConfigError(
                "the server cannot listen there",
                where=f"{host}:{one}",
                why=error.strerror or str(error),
                fix="another --port; without one a free port is taken",
            ) from error
    raise AssertionError


Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

LOCAL = frozenset({"localhost", "127.0.0.1", "[::1]"})
HEADERS = (
    (b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer"), (b"x-frame-options", b"DENY"),
    (b"cross-origin-resource-policy", b"same-origin"), (b"cross-origin-opener-policy", b"same-origin"),
)  # fmt: skip
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; "
    b"base-uri 'none'; frame-ancestors 'none'"
)
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\s/]+)(?::\d{1,5})?")


class Guard:
    """Answers only GET and HEAD of somebody with the token, who calls this machine by one of its names.

    The name is checked because a page of another site may give its own name our address (DNS rebinding). The token
    comes once in the address, and is then kept in a cookie that scripts cannot read.

    Args:
        app: what is guarded.
        token: that opens it; none is asked for if empty.
        hosts: names beside those of the loopback device.
        cookie: name of the cookie: another server on this machine has another.
    """

    def __init__(self, app: App, token: str, hosts: Iterable[str] = (), *, cookie: str = "hypocenter_view") -> None:
        self._app, self._token, self._cookie = app, token, cookie
        self._hosts = LOCAL | {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve the request, or refuse it."""
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
            return
        headers = dict(scope["headers"])
        if scope["method"] not in ("GET", "HEAD"):
            await _refuse(send, 405, "this server only shows", [(b"allow", b"GET, HEAD")])
        elif not self._is_ours(headers.get(b"host", b"").decode("latin-1")):
            await _refuse(send, 421, "this server has another name")
        elif self._has_token(scope, headers):
            await self._app(scope, receive, _with_headers(send))
        elif (rest := self._without_token(scope)) is not None:
            cookie = f"{self._cookie}={self._token}; Path=/; HttpOnly; SameSite=Lax".encode()
            await _refuse(send, 303, "", [(b"location", rest), (b"set-cookie", cookie)])
        else:
            await _refuse(send, 403, "the address needs the token that `hypocenter view` printed")

    def _is_ours(self, host: str) -> bool:
        match = _HOST.fullmatch(host)
        return match is not None and match[1].lower() in self._hosts

    def _has_token(self, scope: Scope, headers: dict[bytes, bytes]) -> bool:
        if not self._token:
            return True
        try:
            cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
        except CookieError:
            return False
        return (
            self._cookie in cookies
            and self._is_right(cookies[self._cookie].value)
            and b"token=" not in scope["query_string"]
        )

    def _without_token(self, scope: Scope) -> bytes | None:
        """Return the address without the token; None where there is no token, or a wrong one."""
        words = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        tokens = [value for name, value in words if name == "token"]
        if not tokens or not all(map(self._is_right, tokens)):
            return None
        rest = urlencode([(name, value) for name, value in words if name != "token"])
        path = "/" + scope.get("raw_path", b"/").decode("latin-1").partition("?")[0].lstrip("/\\")  # never //host
        return (path + (f"?{rest}" if rest else "")).encode("latin-1", "replace")

    def _is_right(self, token: str) -> bool:
        return hmac.compare_digest(token.encode("utf-8", "replace"), self._token.encode())


def _with_headers(send: Send) -> Send:
    async def sent(message: MutableMapping[str, Any]) -> None:
        if message["type"] == "http.response.start":
            own = list(message.get("headers", ()))
            names = {name for name, _ in own}
            own += [pair for pair in HEADERS if pair[0] not in names]
            if b"content-security-policy" not in names:
                own.append((b"content-security-policy", POLICY))
            message = {**message, "headers": own}
        await send(message)

    return sent


async def _refuse(send: Send, status: int, text: str, more: Iterable[tuple[bytes, bytes]] = ()) -> None:
    data = (text + "\n").encode() if text else b""
    headers = [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", str(len(data)).encode()),
               (b"cache-control", b"no-store"), *more]  # fmt: skip
    await _with_headers(send)({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": data})
