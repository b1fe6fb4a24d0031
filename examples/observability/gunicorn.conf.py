"""Tells prometheus-client which workers have ended, so that their gauges are no longer summed."""

from typing import Any

from prometheus_client import multiprocess


def child_exit(server: Any, worker: Any) -> None:
    """Called by the master when a worker has ended."""
    multiprocess.mark_process_dead(worker.pid)
