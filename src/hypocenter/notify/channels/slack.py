"""`slack:https://…`: JSON as Slack, Mattermost, Rocket.Chat and Discord (`…/slack`) take it from incoming webhooks."""

from __future__ import annotations

import json

from hypocenter.notify.alert import Alert
from hypocenter.notify.channels import webhook

prefixes = ("slack:",)
about = "POST a message as Slack takes it"


def check(target: str) -> str:
    """Return what is wrong with an address; empty if nothing is."""
    return webhook.check(target) if target.startswith(webhook.prefixes) else "an address begins with https://"


def send(target: str, alert: Alert, timeout_s: float) -> None:
    """Post the alert to Slack. Raises OSError: it cannot be reached, or answers with an error."""
    webhook.post(target, json.dumps({"text": message(alert)}).encode(), timeout_s)


def message(alert: Alert) -> str:
    """Return the alert in Slack's markup: the first line bold; nothing in it is a link or a mention."""
    head, _, rest = alert.text.partition("\n")
    return f"*{_plain(head)}*" + (f"\n{_plain(rest)}" if rest else "")


def _plain(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("*", "∗")
