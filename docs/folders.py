"""Copies the code of every page into empty folders and runs it there, as a reader does.

    python docs/folders.py [PAGE ...]

For each folder of `docs/pages.py`: every program runs by itself, and so does every file that no server loads.
`python -m pytest` runs the tests of the page. A command that starts a server starts it on a free port, and the `curl`
commands of the page go there. Other commands install packages or are tested elsewhere. Every server is stopped by its
process id.
"""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).parent.parent))

from docs.pages import Folder, every_folder

PORT: Final = "8000"  # where the pages expect a server
PATIENCE: Final = 60  # seconds until a program has ended, or a server listens
SERVERS: Final = {  # how a server's command takes a port
    "uvicorn": "--port {}",
    "gunicorn": "--bind 127.0.0.1:{}",
    "flask": "--port {}",
    "python -m django runserver": "--noreload 127.0.0.1:{}",
}
READER: Final = {  # a reader has pytest without plugins except sluicegate's own; exams are long elsewhere
    "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    "PYTEST_PLUGINS": "sluicegate.testing.plugin",
    "PYTHONDONTWRITEBYTECODE": "1",
    "SLUICEGATE_EXAMPLES": "5",
}
ANY: Final = f"curl -i http://127.0.0.1:{PORT}/"  # of a page that starts a server and sends no request


class Failed(Exception):
    """Something that a reader copied does not work."""


def environment(room: Path) -> dict[str, str]:
    """Return the environment of a reader: the programs of this environment come first, temporary files have their own
    directory.
    """
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    temporary = room / "tmp"
    temporary.mkdir(exist_ok=True)
    return {**os.environ, "PATH": path, "TMPDIR": str(temporary), **READER}


def call(words: list[str], room: Path) -> str:
    """Run one program to its end; what it printed."""
    done = subprocess.run(
        words, check=False, cwd=room, env=environment(room), capture_output=True, text=True, timeout=PATIENCE
    )
    if done.returncode:
        raise Failed(f"{shlex.join(words)}: exit status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


@contextmanager
def server(command: str, room: Path) -> Iterator[int]:
    """A running server, on a port of its own, which no other process takes: the holder is bound and does not listen."""
    holder = socket.socket()
    holder.bind(("127.0.0.1", 0))
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does
    port = int(holder.getsockname()[1])
    (option,) = (option for start, option in SERVERS.items() if command.startswith(start))
    words = shlex.split(f"{command.replace(f'--port {PORT}', '')} {option.format(port)}")
    with (room / "server.log").open("w") as log:
        process = subprocess.Popen(words, cwd=room, env=environment(room), stdout=log, stderr=log)
    try:
        end = time.monotonic() + PATIENCE
        while True:
            with socket.socket() as client:
                if client.connect_ex(("127.0.0.1", port)) == 0:
                    break
            if process.poll() is not None or time.monotonic() > end:
                raise Failed(f"{command}: does not listen\n{(room / 'server.log').read_text()}")
            time.sleep(0.05)
        yield port
    finally:
        process.terminate()
        process.wait(PATIENCE)
        holder.close()


def ask(command: str, port: int, room: Path) -> None:
    """Send a page's requests; a client must get a response with the RateLimit fields."""
    answers = call(["curl", "-s", *shlex.split(command.replace(PORT, str(port)))[1:]], room)
    if "HTTP/1.1 5" in answers:
        raise Failed(f"{command}: {answers}")
    if "ratelimit" not in answers.lower() or ("[1-6]" in command and "429" not in answers):
        raise Failed(f"{command}: no limit in the answer\n{answers}")


def copy(folder: Folder) -> int:
    """Make one folder and run what is in it; how many things were run."""
    count = 0
    with tempfile.TemporaryDirectory(prefix="sg", ignore_cleanup_errors=True) as made:
        room = Path(made)
        programs = {f"program_{block.line + 1}.py": block.text for block in folder.programs}
        for name, text in {**folder.files, **programs}.items():
            (room / name).parent.mkdir(parents=True, exist_ok=True)
            (room / name).write_text(text, "utf-8")
        started = any(command.startswith(tuple(SERVERS)) for command in folder.commands)
        for name in [*([] if started else folder.files), *programs]:
            if name.endswith(".py"):
                call([sys.executable, name], room)
                count += 1
        asked = folder.requests or [ANY]
        for command in folder.commands:
            if command.startswith(tuple(SERVERS)):
                with server(command, room) as port:
                    for each in asked:
                        ask(each, port, room)
                        count += 1
            elif command == "python -m pytest":
                call([sys.executable, *command.split()[1:], "-q", "-p", "no:cacheprovider"], room)
                count += 1
    return count


def attempt(folder: Folder) -> tuple[Folder, int, float, str]:
    """The same, with its time and its error."""
    began = time.monotonic()
    try:
        count, error = copy(folder), ""
    except (Failed, subprocess.TimeoutExpired) as failure:
        count, error = 0, str(failure)
    return folder, count, time.monotonic() - began, error


def main(wanted: list[str]) -> int:
    """Run all folders, or those of the pages that were named; the exit status."""
    began = time.monotonic()
    chosen = [each for each in every_folder() if each.of("python") and (not wanted or each.page.name in wanted)]
    failures = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        results = list(pool.map(attempt, chosen))
    for folder, count, seconds, error in results:
        print(f"{'FAILED' if error else 'ok':<7} {folder.name:<20} {count:>3} run {seconds:>6.1f} s")
        if error:
            failures += 1
            print(error)
    pages = len({folder.page for folder in chosen})
    total = sum(count for _, count, *_ in results)
    print(f"{pages} pages, {len(chosen)} folders, {total} programs and commands, {time.monotonic() - began:.0f} s")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
