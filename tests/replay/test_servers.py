"""Logs of real servers: each is started, sent requests, and its log is recognised and read."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from time import time
from typing import Any, Final, NamedTuple

import polars as pl
import pytest

from sluicegate.replay.log import Log
from tests.running import running
from tests.servers import free_port, wait_until

os.environ["PATH"] += ":/usr/sbin"  # where Debian has servers
HOSTS: Final = ("127.0.0.1", "::1")
AGENT: Final = 'agent "of" alice \\'
FORWARDED: Final = "198.51.100.1, 2001:db8::7"
WANTED: Final = ("address", "method", "path", "query", "status", "agent", "forwarded", "user", "host", "duration")


class Sent(NamedTuple):
    target: str
    path: str | None
    query: str | None = None
    method: str | None = "GET"
    fields: tuple[str, ...] = ()
    user: str | None = None
    forwarded: str | None = None
    raw: bytes = b""


SENT: Final = [
    Sent("/plain", "/plain"),
    Sent("/search?q=a%20b&x=%22", "/search", "q=a%20b&x=%22"),
    Sent("/caf%C3%A9/%2F?", "/café//"),
    Sent("/form", "/form", method="POST"),
    Sent("/user", "/user", fields=(f"Authorization: Basic {b64encode(b'alice:secret').decode()}",), user="alice"),
    Sent("", None, method=None, raw=b"\x16\x03\x01 hello\r\n\r\n"),
    Sent("/behind", "/behind", fields=(f"X-Forwarded-For: {FORWARDED}",), forwarded=FORWARDED),
]  # fmt: skip


class Server(NamedTuple):
    """A server, and the formats in which it logs."""

    program: str
    start: Callable[[Path, int], list[str]]  # writes the configuration; returns the command
    logs: dict[str, tuple[str, str, frozenset[str]]]  # file → the format as given, as recognised, its own columns
    broken: bool = True  # a broken request is in the log
    hosts: tuple[str, ...] = HOSTS


def nginx(folder: Path, port: int) -> list[str]:
    (folder / "nginx.conf").write_text(f"""
        daemon off; pid {folder}/pid; error_log {folder}/error.log; events {{}}
        http {{
            log_format own '{NGINX}';
            access_log {folder}/access.log; access_log {folder}/own.log own;
            {" ".join(f"{each}_temp_path {folder}/{each};" for each in NGINX_FOLDERS)}
            server {{ listen 127.0.0.1:{port}; listen [::1]:{port}; location / {{ return 200; }} }}
        }}""")
    return ["nginx", "-p", str(folder), "-e", str(folder / "error.log"), "-c", str(folder / "nginx.conf")]


NGINX_FOLDERS: Final = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
NGINX: Final = (
    "$remote_addr [$time_iso8601] $request_time $host '$request_method' '$request_uri' $status"
    ' "$http_x_forwarded_for" "$http_user_agent" $msec'
).replace("'", "|")
APACHE: Final = '%{usec}t %a %>s %D "%m" "%U" "%q" "%{User-Agent}i" "%{X-Forwarded-For}i"'


def apache(folder: Path, port: int) -> list[str]:
    modules = Path("/usr/lib/apache2/modules")
    quoted = APACHE.replace('"', '\\"')
    (folder / "apache.conf").write_text(f"""
        ServerRoot {folder}
        ServerName example.com
        PidFile {folder}/pid
        DefaultRuntimeDir {folder}
        User www-data
        Group www-data
        ErrorLog {folder}/error.log
        Listen 127.0.0.1:{port}
        Listen [::1]:{port}
        LoadModule mpm_event_module {modules}/mod_mpm_event.so
        LoadModule authz_core_module {modules}/mod_authz_core.so
        LogFormat "%v:%p %h %l %u %t \\"%r\\" %>s %O \\"%{{Referer}}i\\" \\"%{{User-Agent}}i\\"" vhost_combined
        LogFormat "%h %l %u %t \\"%r\\" %>s %b" common
        LogFormat "{quoted}" own
        CustomLog {folder}/vhosts.log vhost_combined
        CustomLog {folder}/common.log common
        CustomLog {folder}/own.log own
    """)
    return ["apache2", "-X", "-f", str(folder / "apache.conf")]


def caddy(folder: Path, port: int) -> list[str]:
    (folder / "Caddyfile").write_text(f"""{{
        admin off
        auto_https off
        storage file_system {folder}
    }}
    http://:{port} {{
        bind 127.0.0.1 [::1]
        log {{
            output file {folder}/access.log
        }}
        respond 200
    }}""")
    return ["caddy", "run", "--adapter", "caddyfile", "--config", str(folder / "Caddyfile")]


def haproxy(folder: Path, port: int) -> list[str]:
    (folder / "haproxy.cfg").write_text(f"""
global
    log stdout format raw local0
defaults
    mode http
    log global
    option httplog
    option dontlognull
    timeout client 30s
frontend web
    bind 127.0.0.1:{port}
    bind [::1]:{port}
    capture request header Host len 40
    capture request header X-Forwarded-For len 40
    http-request return status 200
""")
    return ["haproxy", "-db", "-f", str(folder / "haproxy.cfg")]


APPLICATION: Final = """
async def asgi(scope, receive, send):
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body"})

def wsgi(environ, start_response):
    start_response("200 OK", [("Content-Length", "0")])
    return []
"""
GUNICORN: Final = '%(t)s %(h)s %(u)s "%(m)s" "%(U)s" "%(q)s" %(s)s %(D)s "%({x-forwarded-for}i)s" "%(a)s"'


def gunicorn(folder: Path, port: int) -> list[str]:
    (folder / "application.py").write_text(APPLICATION)
    listen = ["-b", f"127.0.0.1:{port}", "-b", f"[::1]:{port}"]
    return [
        sys.executable,
        "-m",
        "gunicorn",
        *listen,
        "--access-logfile",
        str(folder / "access.log"),
        "application:wsgi",
    ]


def gunicorn_own(folder: Path, port: int) -> list[str]:
    return [*gunicorn(folder, port), "--access-logformat", GUNICORN]


def uvicorn(folder: Path, port: int) -> list[str]:
    (folder / "application.py").write_text(APPLICATION)
    form = '%(asctime)s %(levelprefix)s %(client_addr)s - "%(request_line)s" %(status_code)s'
    config = {
        "version": 1,
        "formatters": {"access": {"()": "uvicorn.logging.AccessFormatter", "fmt": form, "use_colors": True}},
        "handlers": {
            "file": {"class": "logging.FileHandler", "filename": str(folder / "access.log"), "formatter": "access"}
        },
        "loggers": {"uvicorn.access": {"handlers": ["file"], "level": "INFO"}},
    }
    (folder / "logging.json").write_text(json.dumps(config))
    listen = ["--host", "127.0.0.1", "--port", str(port), "--no-proxy-headers"]
    return [sys.executable, "-m", "uvicorn", *listen, "--log-config", "logging.json", "application:asgi"]


COMBINED: Final = frozenset({"agent", "user"})
OWN: Final = frozenset({"agent", "forwarded", "duration"})
SERVERS: Final = {
    "nginx": Server(
        "nginx", nginx, {"access.log": ("auto", "combined", COMBINED), "own.log": (NGINX, "nginx", OWN | {"host"})}
    ),
    "apache": Server(
        "apache2",
        apache,
        {
            "vhosts.log": ("auto", "vhost_combined", frozenset({"agent", "server"})),
            "common.log": ("auto", "common", frozenset()),
            "own.log": (APACHE, "apache", OWN),
        },
    ),
    "caddy": Server("caddy", caddy, {"access.log": ("auto", "caddy", OWN | {"host"})}, broken=False),
    "haproxy": Server("haproxy", haproxy, {"output": ("auto", "haproxy", frozenset({"duration"}))}),
    "gunicorn": Server(sys.executable, gunicorn, {"access.log": ("auto", "combined", COMBINED)}, broken=False),
    "gunicorn-own": Server(
        sys.executable, gunicorn_own, {"access.log": (GUNICORN, "gunicorn", OWN | {"user"})}, broken=False
    ),
    "uvicorn": Server(
        sys.executable, uvicorn, {"access.log": ("auto", "uvicorn", frozenset())}, broken=False, hosts=("127.0.0.1",)
    ),
}
EXEC: Final = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


def send(host: str, port: int, sent: Sent) -> int:
    """Send a request; return the status of the answer."""
    head = [f"{sent.method} {sent.target} HTTP/1.1", "Host: example.com", "Connection: close", "Content-Length: 0"]
    text = "\r\n".join([*head, f"User-Agent: {AGENT}", *sent.fields, "", ""])
    with socket.create_connection((host, port), timeout=30) as connection:
        connection.sendall(sent.raw or text.encode())
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
    return int(answer.split()[1]) if answer.startswith(b"HTTP/") else 400


def has_all(path: Path, times: int) -> bool:
    """True if the last request of each host is in the log."""
    return path.exists() and path.read_text().count(SENT[-1].target) == times


@pytest.fixture(params=SERVERS, scope="module")
def logged(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Server, Path, list[dict[str, Any]], float]:
    """A server that has logged requests: its folder, what its log must say, and when it began."""
    server = SERVERS[request.param]
    if shutil.which(server.program) is None:
        pytest.skip(f"{server.program} is not installed: scripts/programs installs it")
    folder, port, began = tmp_path_factory.mktemp(request.param), free_port(), time()
    folder.chmod(0o755)
    expected = []
    output = folder / "output"
    with running(["-c", EXEC, *server.start(folder, port)], port, cwd=folder, log_to=output):
        for host in server.hosts:
            for sent in SENT:
                status = send(host, port, sent)
                if sent.raw and not server.broken:
                    continue
                row = {"address": host, "method": sent.method, "path": sent.path, "query": sent.query or None}
                parts = {"agent": None if sent.raw else AGENT, "host": None if sent.raw else "example.com"}
                expected.append({**row, **parts, "status": status, "user": sent.user, "forwarded": sent.forwarded})
        for name in server.logs:
            wait_until(f"{name} is written", has_all, folder / name, len(server.hosts))
    return server, folder, expected, began


def test_what_a_real_server_logs_is_read(logged: tuple[Server, Path, list[dict[str, Any]], float]) -> None:
    server, folder, expected, began = logged
    for name, (given, recognised, optional) in server.logs.items():
        log = Log([folder / name], format=given)
        found = pl.concat(list(log.frames(WANTED))).to_dicts()[-len(expected) :]
        assert log.read.formats == ((str(folder / name), recognised),)
        columns = {"address", "method", "path", "query", "status", *optional} - {"duration"}
        assert all(0 <= row.pop("duration") < 60_000_000 for row in found if "duration" in optional)
        shown = [{column: row[column] for column in WANTED if column in columns} for row in found]
        wanted = [{column: row[column] for column in shown[0]} for row in expected]
        # HAProxy may log two requests of one millisecond the other way round.
        assert sorted(shown, key=repr) == sorted(wanted, key=repr)
        assert all(began - 2 <= row["time"] / 1e6 <= time() + 1 for row in found)
