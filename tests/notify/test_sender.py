"""notify: each way really gets its alert, a way that fails is said once, nobody waits for one that hangs."""

from __future__ import annotations

import email
import json
import socketserver
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from hypocenter.errors import ConfigError
from hypocenter.notify.alert import Alert
from hypocenter.notify.sender import MOST_SENT, Sender, way_of

ALERT = Alert(
    kind="finding", run="0412", directory="runs/0412", host="node7", title="the product overflowed float16", step=12,
    rank=3, code="HC101", cause="format-overflow (proven by replay)", where="rank 3, <!channel> encoder.wo",
    fix="run it in float32", command="hypocenter check runs/0412",
)  # fmt: skip


def sent(*ways: str, n: int = 1, timeout_s: float = 5.0) -> list[str]:
    """What was said while alerts were sent."""
    said: list[str] = []
    sender = Sender([way_of(way) for way in ways], said.append, timeout_s=timeout_s)
    for _ in range(n):
        sender.send(ALERT)
    sender.close(within_s=20)
    return said


@contextmanager
def served(handler: type, kind: type = HTTPServer) -> Iterator[int]:
    server = kind(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


class Hook(BaseHTTPRequestHandler):
    got: ClassVar[list[tuple[str, str, bytes]]] = []
    code = 200

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((self.path, self.headers["Content-Type"], body))
        self.send_response(self.code)
        self.send_header("Location", "http://127.0.0.1:1/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


class Smtp(socketserver.StreamRequestHandler):
    got: ClassVar[list[bytes]] = []

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        while line := self.rfile.readline():
            word = line[:4].upper()
            if word == b"DATA":
                self.wfile.write(b"354 go on\r\n")
                mail = b""
                while (line := self.rfile.readline()) != b".\r\n":
                    mail += line
                self.got.append(mail)
            self.wfile.write(b"221 bye\r\n" if word == b"QUIT" else b"250 well\r\n")
            if word == b"QUIT":
                return


def test_a_command_gets_the_alert_as_json_and_no_shell_reads_it(tmp_path: Path) -> None:
    script = tmp_path / "tell.py"
    script.write_text(
        "import os, sys\nopen(sys.argv[1], 'w').write(sys.stdin.read() + '\\n' + os.environ['HYPOCENTER_ALERT'])"
    )

    said = sent(f"command:{sys.executable} {script} '{tmp_path}/a $(b)'")

    text, _, line = (tmp_path / "a $(b)").read_text().rpartition("\n")
    assert said == []
    assert json.loads(text)["code"] == "HC101"
    assert line == "0412: the product overflowed float16"


def test_a_webhook_gets_json_and_slack_its_own_with_nothing_in_it_that_calls_somebody() -> None:
    Hook.got, Hook.code = [], 200
    with served(Hook) as port:
        said = sent(f"http://127.0.0.1:{port}/a?b=1", f"slack:http://127.0.0.1:{port}/s")

    (path, kind, body), (_, _, slack) = Hook.got
    assert said == []
    assert (path, kind) == ("/a?b=1", "application/json")
    assert json.loads(body)["schema"] == "hypocenter.alert/1"
    text = json.loads(slack)["text"]
    assert text.startswith("*0412: the product overflowed float16*\n")
    assert "<" not in text
    assert "&lt;!channel&gt;" in text


def test_a_mail_goes_through_smtp() -> None:
    Smtp.got = []
    with served(Smtp, socketserver.TCPServer) as port:
        said = sent(f"smtp://localhost:{port}/me@example.org")

    mail = email.message_from_bytes(Smtp.got[0])
    assert said == []
    assert (mail["To"], mail["Subject"]) == ("me@example.org", "hypocenter: 0412: the product overflowed float16")
    assert "fix: run it in float32" in mail.get_payload(decode=True).decode()


def test_a_way_that_fails_is_said_once_without_its_address_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Hook.got, Hook.code = [], 307
    with served(Hook) as port:
        monkeypatch.setenv("MY_HOOK", f"http://127.0.0.1:{port}/secret")
        said = sent("env:MY_HOOK", "command:false", "http://127.0.0.1:1/secret", f"http://127.0.0.1:{port}/b", n=3)

    assert len(Hook.got) == 6
    assert len(said) == 4
    assert "sent to env:MY_HOOK (OSError: it answers 307)" in said[0]
    assert "exit code 1" in said[1]
    assert all("secret" not in line for line in said)


def test_nobody_waits_for_a_way_that_hangs() -> None:
    said: list[str] = []
    sender = Sender([way_of("command:sleep 60")], said.append, timeout_s=0.3)
    before = time.thread_time()
    for _ in range(1000):
        sender.send(ALERT)
    used = time.thread_time() - before

    assert used < 1.0
    assert sender._n_sent == MOST_SENT
    sender.close(within_s=1.5)
    assert said == ["warning: an alert could not be sent to command:… (it took too long)"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("ftp://x", "it begins with none of"),
        ("mailto:", "it names nobody"),
        ("slack:hooks", "an address begins with https://"),
        ("https://", "it names no host"),
        ("command:", "it names no command"),
        ("command:'a", "no closing quotation"),
        ("env:NOT_SET_HERE", "is not set"),
        ("mailto:a@b\nBcc: c@d", "it names nobody"),
    ],
)
def test_what_is_no_way_is_an_error_before_anything_runs(text: str, why: str) -> None:
    with pytest.raises(ConfigError) as raised:
        way_of(text)

    assert why in str(raised.value)
