"""An S3 server on localhost, and a proxy before it that does what stores do: be slow, refuse, cut, be full."""

from __future__ import annotations

import http.client
import logging
import os
import random
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, ClassVar
from urllib.request import Request, urlopen

FAULTS = ("slow", "503", "cut", "full", "lost answer")
SECRET = "wJalrXUtnFEMI-never-in-a-recording"  # of nothing: the server takes any


class Store:
    """Where the proxy listens. `faults`: how often each is done to a request that changes something."""

    def __init__(self, port: int, target: int) -> None:
        self.url, self.target = f"http://127.0.0.1:{port}", target
        self.faults: dict[str, float] = {}
        self.slow_s = 0.05
        self.rng = random.Random(0)
        self.done: dict[str, int] = dict.fromkeys(FAULTS, 0)

    def fault(self) -> str:
        """What happens to the next request; empty: nothing."""
        for name, share in self.faults.items():
            if self.rng.random() < share:
                self.done[name] += 1
                return name
        return ""


class _Proxy(BaseHTTPRequestHandler):
    store: ClassVar[Store]
    protocol_version = "HTTP/1.1"

    def _handle(self) -> None:
        fault = self.store.fault() if self.command in ("PUT", "POST", "DELETE") else ""
        length = int(self.headers.get("Content-Length") or 0)
        if fault == "cut":  # in the middle of the upload
            self.rfile.read(length // 2)
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        body = self._chunked() if "chunked" in self.headers.get("Transfer-Encoding", "") else self.rfile.read(length)
        if fault == "slow":
            time.sleep(self.store.slow_s)
        if fault == "503":
            self._answer(503, {}, b"<Error><Code>SlowDown</Code><Message>reduce your request rate</Message></Error>")
            return
        if fault == "full":
            self._answer(507, {}, b"<Error><Code>InsufficientStorage</Code><Message>no space left</Message></Error>")
            return
        onward = http.client.HTTPConnection("127.0.0.1", self.store.target, timeout=30)
        headers = {k: v for k, v in self.headers.items() if k.lower() not in ("transfer-encoding", "expect")}
        headers["Content-Length"] = str(len(body))
        onward.request(self.command, self.path, body, headers)
        answer = onward.getresponse()
        data = answer.read()
        onward.close()
        if fault == "lost answer":  # it is done, and nobody hears of it
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self._answer(answer.status, dict(answer.getheaders()), data)

    def _chunked(self) -> bytes:
        pieces: list[bytes] = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            pieces.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():  # trailers
            pass
        return b"".join(pieces)

    def _answer(self, status: int, headers: dict[str, str], data: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in ("transfer-encoding", "connection", "content-length"):
                self.send_header(name, value)
        length = headers.get("Content-Length", str(len(data))) if self.command == "HEAD" else str(len(data))
        self.send_header("Content-Length", length)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = _handle

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is no error."""


@contextmanager
def served(bucket: str = "runs") -> Generator[Store]:
    """A store with one bucket, and the environment that leads there."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    moto = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    moto.start()
    _, port = moto.get_host_and_port()
    # What an earlier server of this process has kept is another's.
    urlopen(Request(f"http://127.0.0.1:{port}/moto-api/reset", method="POST"), timeout=60).close()
    server = _Server(("127.0.0.1", 0), _Proxy)
    store = _Proxy.store = Store(server.server_address[1], port)
    Thread(target=server.serve_forever, daemon=True).start()
    own = {
        "AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": store.url, "AWS_MAX_ATTEMPTS": "1", "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    before = {name: os.environ.get(name) for name in own}
    os.environ.update(own)
    try:
        import s3fs

        s3fs.S3FileSystem.clear_instance_cache()
        s3fs.S3FileSystem().mkdir(bucket)
        yield store
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        server.shutdown()
        server.server_close()
        moto.stop()
