"""What Python itself makes necessary: forks, functions of users that are async, and values that no traceback shows."""
