"""Who may ask: whoever has the token, by a name of this machine, and only to read."""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode

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
