"""A server on a socket of this machine, its token, and the address to open."""

from __future__ import annotations

import errno
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import uvicorn

from hypocenter.errors import ConfigError
from hypocenter.notify.alert import Alert
from hypocenter.view.guard import LOCAL, Guard
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
