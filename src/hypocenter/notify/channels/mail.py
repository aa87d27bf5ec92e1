"""`mailto:ADDRESS`: a mail through the machine's own SMTP server; `smtp://HOST:PORT/ADDRESS` through another."""

from __future__ import annotations

import re
import smtplib
from email.message import EmailMessage
from urllib.parse import urlsplit

from hypocenter.notify.alert import Alert

prefixes = ("mailto:", "smtp://")
about = "send a mail through SMTP on localhost, or on HOST:PORT"

_ADDRESS = re.compile(r"[^\s@,;<>\"]+@?[^\s@,;<>\"]*")


def check(target: str) -> str:
    """Return what is wrong with an address; empty if nothing is."""
    try:
        address = _parts(target)[2]
    except ValueError as error:
        return str(error).lower()
    return "" if _ADDRESS.fullmatch(address) else "it names nobody"


def send(target: str, alert: Alert, timeout_s: float) -> None:
    """Send the alert as a mail. Raises OSError (also as smtplib's errors): no server, or it does not take the mail."""
    host, port, address = _parts(target)
    mail = EmailMessage()
    mail["Subject"] = " ".join(f"hypocenter: {alert.run}: {alert.title}".split())[:200]
    mail["From"] = f"hypocenter@{re.sub(r'[^A-Za-z0-9.-]', '', alert.host).strip('.-') or 'localhost'}"
    mail["To"] = address
    mail.set_content(alert.text + "\n")
    with smtplib.SMTP(host, port, timeout=timeout_s) as server:
        server.send_message(mail)


def _parts(target: str) -> tuple[str, int, str]:
    """Return host, port and mail address of a target."""
    if not target.startswith("smtp://"):
        return "localhost", 25, target
    found = urlsplit(target)
    return found.hostname or "localhost", found.port or 25, found.path.lstrip("/")
