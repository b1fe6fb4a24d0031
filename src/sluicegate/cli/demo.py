"""`sluicegate demo`: a Starlette application on uvicorn, two users, and what each of their requests came to.

The case is the articles' own: "a user may reply 5 times a minute". Everything is real: server, sockets and store.
"""

from __future__ import annotations

import http.client
import secrets
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import Final

from sluicegate.errors import SluicegateError
from sluicegate.extras import needs
from sluicegate.stores import open_store

with needs("cli"):
    import uvicorn
    from rich.console import Console
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    from sluicegate.starlette import RateLimitMiddleware, limit

HOST: Final = "127.0.0.1"
SHOWN: Final = ("RateLimit", "Retry-After")
VISITS: Final = (*["alice"] * 7, *["bob"] * 2, "alice")
EXPECTED: Final = [200] * 5 + [429] * 2 + [200] * 2 + [429]


@limit("5/minute")
async def reply(request: Request) -> PlainTextResponse:
    """The one thing that users do here."""
    return PlainTextResponse("posted\n")


def make_app(store: str) -> Starlette:
    """The application; every run has budgets of its own, also on a server that others use."""
    app = Starlette(routes=[Route("/reply", reply, methods=["POST"])])
    prefix = f"sluicegate-demo-{secrets.token_hex(4)}"
    app.add_middleware(RateLimitMiddleware, store=store, key="header:X-User", prefix=prefix, on_store_failure="deny")
    return app


def run_demo(store: str, *, port: int, once: bool) -> None:
    """Serve, print the transcript, and stay up unless `once`. SluicegateError when the transcript is wrong."""
    console = Console(highlight=False, soft_wrap=True)
    with closing(open_store(store, prefix="sluicegate-demo")) as tried:  # what cannot work says so, in one sentence
        tried.forget("demo", "nobody")
    with serving(make_app(store), port) as bound:
        console.print("A user may reply 5 times a minute. Two users try:\n")
        statuses = [_visit(console, bound, user) for user in VISITS]
        if statuses != EXPECTED:
            raise SluicegateError(f"the demo got {statuses} where {EXPECTED} was expected")
        console.print("\nRefused requests cost nothing, and waiting for Retry-After is enough.")
        if not once:
            _stay_up(console, bound)


@contextmanager
def serving(app: Starlette, port: int) -> Generator[int]:
    """The application on uvicorn in a thread of its own, on loopback; gives the port, stops it at the end."""
    config = uvicorn.Config(app, log_level="warning")
    with needs("cli"):
        config.load()  # imports the packages that uvicorn reads HTTP with; in the thread, nobody would hear an error
    listener = socket.create_server((HOST, port))
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def _visit(console: Console, port: int, user: str) -> int:
    """One request of one user, printed with what the server says about the limit."""
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    connection.request("POST", "/reply", headers={"X-User": user})
    response = connection.getresponse()
    response.read()
    connection.close()
    told = "  ".join(f"{name}: {value}" for name in SHOWN if (value := response.headers.get(name)))
    colour = "green" if response.status == 200 else "red"
    console.print(f"  {user:<8} POST /reply  [{colour}]{response.status}[/]  ", end="")
    console.print(told, markup=False)
    return response.status


def _stay_up(console: Console, port: int) -> None:
    """Say how to try it, and wait for Ctrl-C, which may come as soon as it is spoken of."""
    try:
        console.print(f"\nThe application stays up at http://{HOST}:{port}; try it, and stop it with Ctrl-C:\n")
        for user in ("alice", "you"):
            console.print(f"  curl -i -X POST -H 'X-User: {user}' http://{HOST}:{port}/reply")
        threading.Event().wait()
    except KeyboardInterrupt:
        sys.stdout.write("\n")
