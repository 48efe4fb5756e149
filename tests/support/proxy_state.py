"""What the proxy's process is told and what it counts. Standard library alone."""

from __future__ import annotations

import re
import sys
import threading
from collections import Counter
from typing import Any

from tests.support.proxy_links import SharedLink

__all__ = ["Rule", "State"]


_COUNT_AT = {
    **dict.fromkeys(("cut", "reset", "hold", "long", "cut-head", "reset-head", "hold-head"), 0),
    **dict.fromkeys(("stall", "drip"), 1),
}
"""Which argument of an action is the number of bytes before it."""


class Rule:
    """One fault and how many requests it has seen."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.action, *self._arguments = data["action"].split(":")
        self.body = data["body"].encode()
        self.headers = [tuple(pair) for pair in data["headers"]]
        place = _COUNT_AT.get(self.action, sys.maxsize)
        self.after = int(self._arguments[place]) if len(self._arguments) > place else None
        """Bytes of the body, or of the head, before the fault; None: it comes before the head."""
        self._pattern = re.compile(data["match"])
        self._first, self._times = data["nth"], data["times"]
        self._signed = f"Credential={data['key']}/" if data["key"] else ""
        self._seen = 0

    def fires(self, request: str, signature: str) -> bool:
        if self._signed not in signature or not self._pattern.search(request):
            return False
        self._seen += 1
        past = self._seen - self._first
        return past >= 0 and bool(self._times == 0 or past < self._times)

    @property
    def pauses(self) -> bool:
        return self.action in ("stall", "hold")

    @property
    def is_in_head(self) -> bool:
        return bool(self.action.endswith("-head"))

    @property
    def seconds(self) -> float:
        return float(self._arguments[0])

    @property
    def answer(self) -> tuple[int, bytes]:
        """Status and body of "status:NNN[:Code]"."""
        status, code = (*self._arguments, "")[:2]
        xml = f"<Error><Code>{code}</Code><Message>fault of the test</Message></Error>" if code else ""
        return int(status), self.body or xml.encode()


class State:
    """What the commands set and what the connections count."""

    def __init__(self) -> None:
        self.lock = threading.Condition()
        self.rate = 0.0
        self.delay = 0.0
        self.total: SharedLink | None = None
        self.rules: list[Rule] = []
        self.held = 0
        self.releases = 0
        self.active = 0
        self.reset()

    def reset(self) -> None:
        with self.lock:
            self.counts: Counter[str] = Counter()
            self.ranges = self.bytes = self.connections = 0
            self.most_active = self.active
            self.log: list[list[Any]] = []

    def shape(self, rate: float, total_rate: float, delay: float) -> None:
        with self.lock:
            self.rate, self.delay = rate, delay
            self.total = SharedLink(total_rate) if total_rate else None

    def begin(self, kind: str, path: str, span: str, signature: str) -> tuple[list[Any], Rule | None]:
        with self.lock:
            entry = [kind, path, span, 0]
            self.log.append(entry)
            self.counts[kind] += 1
            self.ranges += kind == "GET" and bool(span)
            self.active += 1
            self.most_active = max(self.most_active, self.active)
            text = f"{kind} {path} {span}".rstrip()
            fired = [rule for rule in self.rules if rule.fires(text, signature)]
            return entry, fired[0] if fired else None

    def end(self) -> None:
        with self.lock:
            self.active -= 1
            self.lock.notify_all()

    def sent(self, count: int) -> None:
        with self.lock:
            self.bytes += count

    def hold(self, releases: int) -> None:
        """Until there were more than so many."""
        with self.lock:
            self.held += 1
            self.lock.wait_for(lambda: self.releases != releases)
            self.held -= 1

    def release(self) -> None:
        with self.lock:
            self.releases += 1
            self.lock.notify_all()

    def statistics(self) -> dict[str, Any]:
        with self.lock:
            return {
                "counts": dict(self.counts),
                "ranges": self.ranges,
                "bytes_sent": self.bytes,
                "connections": self.connections,
                "active": self.active,
                "max_concurrent": self.most_active,
                "held": self.held,
            }
