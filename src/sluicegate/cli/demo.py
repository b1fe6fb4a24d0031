"""`sluicegate demo`: a Starlette application on uvicorn, and the responses to the requests of two users.

The rule is the usual example: "a user may reply 5 times a minute". The server, the sockets and the store are real.
"""

from __future__ import annotations

import http.client
import os
import secrets
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from typing import Final

from sluicegate.errors import needs
from sluicegate.stores import open_store

with needs("cli"):
    import click
    import uvicorn
    from rich.console import Console
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    from sluicegate.cli.commands import Failure
    from sluicegate.starlette import RateLimitMiddleware, limit
    from sluicegate.web.settings import Settings

HOST: Final = "127.0.0.1"
PATIENCE: Final = 5.0  # seconds for the store: a laptop may be busy
SHOWN: Final = ("RateLimit", "Retry-After")
VISITS: Final = (*["alice"] * 7, *["bob"] * 2, "alice")


@limit("5/minute")
async def reply(request: Request) -> PlainTextResponse:
    """The only view: it receives a user's reply."""
    return PlainTextResponse("posted\n")


@click.command()
@click.option("--once", is_flag=True, help="Print the requests and their responses, then exit.")
@click.option("--store", default="memory://", show_default=True, metavar="URL", help="The store for the budgets.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), help="The port to listen on; a free one by default.")
def demo(store: str, port: int, *, once: bool) -> None:
    """Start a real application, limited to 5 replies a minute for each user, and watch it refuse."""
    console = Console(highlight=False, soft_wrap=True)
    with closing(open_store(store, prefix="sluicegate-demo", deadline=PATIENCE)) as tried:
        tried.forget("demo", "nobody")  # a store that does not work raises here
    with serving(make_app(store), port) as bound:
        console.print("A user may reply 5 times a minute. Two users try:\n")
        for user in VISITS:
            _visit(console, bound, user)
        console.print("\nA refused request costs nothing. A request after Retry-After passes.")
        if not once:
            _stay_up(console, bound)


def make_app(store: str) -> Starlette:
    """Make the application. A random prefix gives each run separate budgets, even on a Redis server that is in use."""
    app = Starlette(routes=[Route("/reply", reply, methods=["POST"])])
    prefix = f"sluicegate-demo-{secrets.token_hex(4)}"
    settings = Settings(store=store, key="header:X-User", prefix=prefix, on_store_failure="deny", deadline=PATIENCE)
    app.add_middleware(RateLimitMiddleware, settings=settings)
    return app


@contextmanager
def serving(app: Starlette, port: int) -> Generator[int]:
    """Serve the application with uvicorn on loopback, in a thread. Yield the port, and stop the server at the end."""
    config = uvicorn.Config(app, log_level="warning")
    with needs("cli"):
        config.load()  # imports uvicorn's HTTP parsers here, because an error in the thread would be lost
    try:
        listener = socket.create_server((HOST, port))
    except OSError as error:
        problem = f"{HOST}:{port} cannot be listened on ({os.strerror(error.errno or 0)})"
        raise Failure(f"--port {port}: {problem}; give another one, or leave it out for a free one") from error
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def _visit(console: Console, port: int, user: str) -> None:
    """Send one request of one user, and print the response's status and limit fields."""
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    connection.request("POST", "/reply", headers={"X-User": user})
    response = connection.getresponse()
    response.read()
    connection.close()
    fields = "  ".join(f"{name}: {value}" for name in SHOWN if (value := response.headers.get(name)))
    color = "green" if response.status == 200 else "red"
    console.print(f"  {user:<8} POST /reply  [{color}]{response.status}[/]  ", end="")
    console.print(fields, markup=False)


def _stay_up(console: Console, port: int) -> None:
    """Print how to send requests, and wait for Ctrl-C. Ctrl-C may already come while this prints."""
    try:
        console.print(f"\nThe application keeps running at http://{HOST}:{port}. Try it; stop it with Ctrl-C:\n")
        for user in ("alice", "you"):
            console.print(f"  curl -i -X POST -H 'X-User: {user}' http://{HOST}:{port}/reply")
        threading.Event().wait()
    except KeyboardInterrupt:
        sys.stdout.write("\n")
