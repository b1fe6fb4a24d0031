"""Many at once: processes, threads and tasks."""
