"""The example of an AI gateway with a false service, and the clients of OpenAI and Anthropic with our fields."""

from __future__ import annotations

from collections.abc import Iterator
from http.client import HTTPResponse
from socket import create_connection
from time import monotonic
from typing import Any

import pytest

from tests.running import ROOT, ask, running
from tests.servers import free_port, wait_until

UVICORN = "-m uvicorn --host 127.0.0.1 --port {} {}"
CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}
PROMPT = '{"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": true}'


@pytest.fixture(params=["memory", "valkey"])
def gateway(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of the gateway in front of a false service."""
    store = "memory://"
    if request.param == "valkey":
        server = request.getfixturevalue("valkey")
        server.flush()
        store = server.url
    service, port = free_port(), free_port()
    env = {"SLUICEGATE_STORE": store, "SLUICEGATE_DEADLINE": "5", "AI_SERVICE": f"http://127.0.0.1:{service}"}
    with (
        running(UVICORN.format(service, "tests.ai_service:service").split(), service),
        running(UVICORN.format(port, "examples.ai_gateway:app").split(), port, env=env),
    ):
        yield port


def test_the_gateway_settles_each_stream(gateway: int) -> None:
    bob = {**JSON, "Authorization": "Bearer key-of-bob"}
    first = ask(gateway, "POST", CHAT, bob, PROMPT)
    assert (first.status, b'"total_tokens": 20' in first.body) == (200, True)
    assert first.headers["x-ratelimit-remaining-requests"] == "99"
    assert first.headers["x-ratelimit-reset-tokens"] in ("1m0s", "1m1s")
    left = [int(first.headers["x-ratelimit-remaining-tokens"])]
    assert left == [1000 - 300 - len(PROMPT) // 4]

    def is_settled() -> bool:
        """A stream is settled when its last byte was sent: a client may come again before that."""
        left.append(int(ask(gateway, "POST", CHAT, bob, PROMPT).headers["x-ratelimit-remaining-tokens"]))
        return left[-1] == left[0] - 20 * (len(left) - 1)

    wait_until("each stream has cost 20", is_settled)
    alice = ask(gateway, "POST", CHAT, {**JSON, "Authorization": "Bearer key-of-alice"}, PROMPT)
    assert alice.headers["x-ratelimit-limit-tokens"] == "100000"
    assert ask(gateway, "POST", CHAT, JSON, PROMPT).status == 401
    long = f'{PROMPT[:-1]}, "user": "{"x" * 4_000}"}}'
    refused = ask(gateway, "POST", CHAT, bob, long)
    assert (refused.status, refused.headers["retry-after-ms"]) == (429, None), "its estimate is above the limit"


def test_a_stream_that_the_client_cuts_off_costs_what_was_sent(gateway: int) -> None:
    bob = {**JSON, "Authorization": "Bearer key-of-bob"}
    prompt = PROMPT.replace('"m"', '"long"')
    with create_connection(("127.0.0.1", gateway)) as client:
        lines = [f"POST {CHAT} HTTP/1.1", "Host: a", *[f"{name}: {text}" for name, text in bob.items()]]
        client.sendall("\r\n".join([*lines, f"Content-Length: {len(prompt)}", "", prompt]).encode())
        seen = b""
        while seen.count(b"data: ") < 350:
            seen += client.recv(65_536)
    given, asked = 1000 - 300 - len(PROMPT) // 4, list[int]()

    def is_settled() -> bool:
        """The estimate would be 300, and one more request that is not settled yet 300 more."""
        answer = ask(gateway, "POST", CHAT, bob, PROMPT)
        asked.append(given - int(answer.headers["x-ratelimit-remaining-tokens"]) - 20 * len(asked))
        return 350 <= asked[-1] - len(prompt) // 4 <= 402

    wait_until("it has cost what was sent", is_settled)
    wrong = [ask(gateway, "POST", CHAT, bob, PROMPT.replace('"m"', '"unknown"')).status for _ in range(3)]
    assert wrong == [404] * 3, "an error costs nothing"


def test_a_chunked_prompt_is_charged_as_the_longest(gateway: int) -> None:
    def send(customer: str, spaces: int = 0) -> tuple[int, int]:
        """The status, and how many tokens are left."""
        text = PROMPT + " " * spaces
        lines = [f"POST {CHAT} HTTP/1.1", "Host: a", f"Authorization: Bearer key-of-{customer}"]
        head = "\r\n".join([*lines, "Transfer-Encoding: chunked", "", ""])
        with create_connection(("127.0.0.1", gateway)) as client:
            client.sendall(f"{head}{len(text):x}\r\n{text}\r\n0\r\n\r\n".encode())
            answer = HTTPResponse(client)
            answer.begin()
            answer.read()
        return answer.status, int(answer.headers["x-ratelimit-remaining-tokens"])

    longest = 300 + 200_000 // 4
    assert send("alice") == (200, 100_000 - longest)
    too_long = (413, 100_000 - 20 - longest)
    wait_until("the first has cost 20", lambda: send("alice", 200_000) == too_long)
    assert send("bob")[0] == 429, "the estimate is above the limit of the plan"


def test_what_the_gateway_refuses(gateway: int) -> None:
    bob = {**JSON, "Authorization": "Bearer key-of-bob"}
    assert [ask(gateway, "POST", CHAT, bob, body).status for body in ("{", "7", "[1]") * 2] == [400] * 6
    assert [ask(gateway, "POST", CHAT, JSON, PROMPT).status for _ in range(21)] == [401] * 20 + [429]


def test_the_gateway_is_short() -> None:
    lines = (ROOT / "examples" / "ai_gateway.py").read_text().splitlines()
    assert len([line for line in lines if line.strip()]) <= 60


def _of_openai(package: Any, port: int) -> Any:
    client = package.OpenAI(api_key="k", base_url=f"http://127.0.0.1:{port}/v1", max_retries=2)
    return lambda: client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])


def _of_anthropic(package: Any, port: int) -> Any:
    client = package.Anthropic(api_key="k", base_url=f"http://127.0.0.1:{port}", max_retries=2)
    return lambda: client.messages.create(model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}])


@pytest.mark.slow
@pytest.mark.parametrize(("name", "make"), [("openai", _of_openai), ("anthropic", _of_anthropic)])
def test_the_clients_wait_as_long_as_we_say(name: str, make: Any) -> None:
    package, port = pytest.importorskip(name), free_port()
    with running(UVICORN.format(port, "tests.ai_service:limited").split(), port):
        call = make(package, port)
        call()
        start = monotonic()
        assert call().usage
        assert monotonic() - start > 1, "its own first wait is half a second"
        assert ask(port, "GET", "/", {}).body == b"3", "one retry, and it passed"
