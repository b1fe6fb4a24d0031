"""Load on a port of this machine from another process: wrk if it is installed, else this module's load generator.

    python -m bench.load PORT SECONDS CONNECTIONS IDENTITIES

runs the load generator. Like wrk it keeps its connections open, but it sends at most a few thousand requests a second.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from bench.figures import spread

WRK = shutil.which("wrk")
SCRIPT = Path(__file__).with_name("load.lua")
CONNECTIONS = 8


class Load(NamedTuple):
    """The results. `refused` counts responses of status 400 and above; latencies are in milliseconds."""

    requests: int
    seconds: float
    p50: float
    p99: float
    refused: int
    failed: int


def load(port: int, seconds: float, *, identities: int) -> Load:
    """Send load for `seconds`. RuntimeError unless every request was answered."""
    if WRK is None:
        arguments = [port, seconds, CONNECTIONS, identities]
        command = [sys.executable, "-m", "bench.load", *map(str, arguments)]
    else:
        # wrk accepts only whole seconds, and needs one second more to stop.
        options = ["-t1", f"-c{CONNECTIONS}", f"-d{max(1, round(seconds))}s", "--latency", "-s", str(SCRIPT)]
        command = [WRK, *options, f"http://127.0.0.1:{port}/", "--", str(identities)]
    ended = subprocess.run(command, check=True, capture_output=True, text=True, timeout=seconds + 30)
    found = Load(**json.loads(ended.stdout.strip().splitlines()[-1]))
    if found.failed or not found.requests:
        raise RuntimeError(f"{found.failed} of {found.requests} requests were not answered")
    return found


async def _load(port: int, seconds: float, connections: int, identities: int) -> Load:
    until = time.monotonic() + seconds
    latencies: list[float] = []
    refused = 0

    async def work(first: int) -> None:
        nonlocal refused
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        sent = first
        while (began := time.monotonic()) < until:
            writer.write(f"GET / HTTP/1.1\r\nHost: bench\r\nX-User: user:{sent % identities}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            fields = dict(line.split(b": ", 1) for line in head.lower().split(b"\r\n")[1:-2])
            if b"content-length" in fields:
                await reader.readexactly(int(fields[b"content-length"]))
            else:  # in chunks, each behind its size; the last one is empty
                while size := int(await reader.readline(), 16):
                    await reader.readexactly(size + 2)
                await reader.readexactly(2)
            latencies.append(time.monotonic() - began)
            refused += head[9:12] >= b"400"
            sent += connections
        writer.close()

    began = time.monotonic()
    await asyncio.gather(*[work(first) for first in range(connections)])
    took = time.monotonic() - began
    latencies.sort()
    p99 = latencies[int(len(latencies) * 0.99)]
    return Load(
        requests=len(latencies),
        seconds=took,
        p50=spread(latencies).middle * 1e3,
        p99=p99 * 1e3,
        refused=refused,
        failed=0,
    )


if __name__ == "__main__":
    port, seconds, connections, identities = map(float, sys.argv[1:])
    print(json.dumps(asyncio.run(_load(int(port), seconds, int(connections), int(identities)))._asdict()))
