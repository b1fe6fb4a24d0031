"""Hostile requests: they try to bypass a limit, to exhaust it, or to use it against others."""
