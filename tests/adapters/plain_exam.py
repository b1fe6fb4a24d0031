"""The adapter exam without a framework: what each path returns, and rules for paths instead of the decorators."""

from __future__ import annotations

from typing import Any

from sluicegate import ManualClock, Rule
from sluicegate.testing.adapter import AdapterExam
from sluicegate.testing.charges import wrong

PAGES = {
    "/open": "open",
    "/limited": "limited",
    "/above": "above",
    "/strict": "strict",
    "/posted": "posted",
    "/shared/a": "a",
    "/shared/b": "b",
    "/exempt": "exempt",
}


def _path(request: dict[str, Any]) -> str:
    """The path of a scope or of an environ."""
    return str(request["path"] if "path" in request else request["PATH_INFO"])


RULES = (
    Rule(name="limited", quota="2/minute", path="/limited"),
    Rule(name="above", quota="2/minute", path="/above"),
    Rule(name="posted", quota="1/minute", path="/posted", methods=["POST"]),
    Rule(name="shared", quota="2/minute", path="/shared/*"),
    Rule(name="stream", quota="2/minute", path="/stream"),
    Rule(name="guess", quota="2/minute", path="/guess/*", charge_when=wrong),
    Rule(name="items", quota="2/minute", path="/items/*", key=_path),
)


def respond(method: str, path: str, calls: list[str]) -> tuple[int, list[bytes], list[tuple[str, str]]]:
    """Return the status, the chunks and the header fields of the exam's application."""
    if path == "/open":
        if method not in ("GET", "HEAD", "POST", "OPTIONS"):
            return 405, [b"no"], []
        calls.append("open")
    if path.startswith("/guess/"):
        word = path.removeprefix("/guess/")
        calls.append(word)
        return 200 if word == "right" else 401, [word.encode()], []
    if path == "/redirect":
        calls.append("redirect")
        return 302, [], [("Location", "/open")]
    if path == "/boom":
        calls.append("boom")
        raise RuntimeError("boom")
    if path == "/stream":
        return 200, [b"one", b"two"], []
    if path == "/slow":  # the application adds each chunk to `calls` when it sends it
        return 200, [b"one", b"two", b"three"], []
    if path.startswith("/items/"):
        return 200, [path.removeprefix("/items/").encode()], []
    return (200, [PAGES[path].encode()], []) if path in PAGES else (404, [b"nothing"], [])


class PlainExam(AdapterExam):
    charges_preflights = True

    def test_override_scope_methods_exempt_and_path_keys(self) -> None:
        """Without decorators nothing is exempt and no default is overridden. Rules do the rest."""
        client = self.client(clock=ManualClock())
        assert [client.request("GET", f"/shared/{name}").status for name in "aba"] == [200, 200, 429]
        statuses = [client.request(method, "/posted").status for method in ("GET", "POST", "GET", "POST")]
        assert statuses == [200, 200, 200, 429]
        assert [client.request("GET", f"/items/{name}").status for name in "xxyx"] == [200, 200, 200, 429]
