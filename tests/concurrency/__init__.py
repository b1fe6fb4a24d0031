"""Concurrent requests: processes, threads and tasks."""
