"""The module redis-cell, built once per machine by cargo from its crate, for the tests of `redis+cell://`.

The library is kept in the user's cache, under the crate's version, outside of the repository. A build takes some ten
seconds and needs cargo, a C compiler and, the first time, a registry of crates.
"""

from __future__ import annotations

import fcntl
import os
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

VERSION = "0.2.2"
PACKAGE = f"""\
[package]
name = "fetch-redis-cell"
version = "0.0.0"
edition = "2021"

[dependencies]
redis-cell = "={VERSION}"
"""


def library() -> Path:
    """The built module. Skips the test if there is no cargo, or if it cannot download the crate."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sluicegate"
    cache.mkdir(parents=True, exist_ok=True)
    built = cache / f"redis-cell-{VERSION}-{platform.machine()}.so"
    with (cache / "redis-cell.lock").open("w") as lock:  # one of the test workers builds
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.exists():
            with tempfile.TemporaryDirectory(dir=cache) as directory:
                _build(Path(directory)).replace(built)
    return built


def _build(directory: Path) -> Path:
    """Cargo cannot install a crate that is a library: download its source with cargo, and build that."""
    cargo = shutil.which("cargo")
    if cargo is None:
        pytest.skip("the real redis-cell is not tested: no cargo here; install Rust, and these tests build it")
    (directory / "Cargo.toml").write_text(PACKAGE)
    (directory / "src").mkdir()
    (directory / "src" / "lib.rs").touch()
    fetched = _run(cargo, "vendor", "crates", within=directory)
    if fetched.returncode:
        pytest.skip(f"the real redis-cell is not tested: cargo cannot fetch it: {fetched.stderr.strip()[-300:]}")
    source = directory / "crates" / "redis-cell"
    compiled = _run(cargo, "build", "--release", "--target-dir", str(directory / "target"), within=source)
    assert compiled.returncode == 0, compiled.stderr
    (found,) = (directory / "target" / "release").glob("libredis_cell.[sd][oy]*")  # .so or .dylib; and not .d
    return found


def _run(*words: str, within: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(words, cwd=within, check=False, capture_output=True, text=True, timeout=100)
