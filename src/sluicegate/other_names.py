"""The names that other rate limiters give to options and values, and what they are called here: for errors."""

from __future__ import annotations

from typing import Final

_KEY: Final = ("key", '"user", "ip", "header:Name" or a function of the request')
_STORE: Final = ("store", 'a URL such as "redis://localhost:6379/0"')
_ALGORITHM: Final = ("algorithm", '"sliding-window", "fixed-window", "gcra" and others')
_QUOTA: Final = ("quota", 'one text, such as "10/minute; 100/day"')
_LOCAL: Final = ("on_store_failure", '"local" counts in this process while the store is down')
_DENIED: Final = ("on_denied", "a function of (request, decision) that returns the response")
_CHARGE: Final = ("charge_when", "a function of the response; the request is charged before the view and refunded")
_METHODS: Final = ("per_method", "True gives each method a budget of its own")
_PROXIES: Final = ("trusted_proxies", "a number of hops, or the networks of your proxies")

OPTIONS: Final = {  # the name elsewhere → (the name here, how it is used here)
    # Flask-Limiter and slowapi
    "key_func": _KEY,
    "limit_value": _QUOTA,
    "limits": _QUOTA,
    "limit_string": _QUOTA,
    "application_limits": ("default_limits", "each is one budget for the whole application"),
    "default": ("default_limits", "each is one budget for the whole application"),
    "default_limits_per_method": _METHODS,
    "application_limits_per_method": _METHODS,
    "per_method": _METHODS,
    "default_limits_exempt_when": ("when", "it has the opposite meaning, in a rule of the settings"),
    "application_limits_exempt_when": ("when", "it has the opposite meaning, in a rule of the settings"),
    "exempt_when": ("when", "it has the opposite meaning: the rule applies if it is true"),
    "default_limits_deduct_when": _CHARGE,
    "application_limits_deduct_when": _CHARGE,
    "deduct_when": _CHARGE,
    "default_limits_cost": ("cost", "of a rule in the settings"),
    "application_limits_cost": ("cost", "of a rule in the settings"),
    "storage_uri": _STORE,
    "storage_url": _STORE,
    "storage": _STORE,
    "storage_options": ("store", "options are in its URL; or give a RedisStore with a client of your own"),
    "strategy": _ALGORITHM,
    "headers_enabled": ("headers", "the name of a dialect, or None for no fields"),
    "header_name_mapping": ("headers", "the name of a dialect, or None for no fields"),
    "header_limit": ("headers", "the name of a dialect, or None for no fields"),
    "header_remaining": ("headers", "the name of a dialect, or None for no fields"),
    "header_reset": ("headers", "the name of a dialect, or None for no fields"),
    "retry_after": ("headers", "Retry-After is in every refusal, whatever the dialect"),
    "key_prefix": ("prefix", "it begins every key in a shared server"),
    "swallow_errors": ("on_store_failure", '"allow" lets requests pass while the store is down'),
    "in_memory_fallback": _LOCAL,
    "in_memory_fallback_enabled": _LOCAL,
    "on_breach": _DENIED,
    "on_meta_breach": _DENIED,
    "meta_limits": ("ban", "Ban(after=10, within=60, duration=3600) blocks clients that are refused too often"),
    "request_filter": ("allow", "networks, identities or functions of the request that always pass"),
    "auto_check": ("enabled", "False lets every request pass"),
    "key_style": ("scope", "a budget belongs to the view, whatever its URL; scope shares it"),
    # fastapi-limiter, throttled-py and others
    "identifier": _KEY,
    "times": _QUOTA,
    "seconds": _QUOTA,
    "minutes": _QUOTA,
    "hours": _QUOTA,
    "milliseconds": _QUOTA,
    "callback": _DENIED,
    "http_callback": _DENIED,
    "using": _ALGORITHM,
    "redis": _STORE,
    "backend": _STORE,
    "weight": ("cost", "units for each request"),
    "timeout": ("deadline", "the seconds that a request may wait for the store"),
    "namespace": ("scope", "rules and views of one scope share a budget"),
    "for": ("duration", "the length of the first ban"),
    "length": ("duration", "the length of the first ban"),
    # django-ratelimit, django-smart-ratelimit and Django REST framework
    "rate": _QUOTA,
    "group": ("scope", "rules and views of one scope share a budget"),
    "throttle_scope": ("scope", "rules and views of one scope share a budget"),
    "block": ("mode", 'mode="shadow" is block=False; Decision.would_refuse says which rules would have refused'),
    "shadow": ("mode", 'mode="shadow" counts and never refuses'),
    "skip_if": ("when", "it has the opposite meaning: the rule applies if it is true"),
    "allow_list": ("allow", "networks, identities or functions of the request that always pass"),
    "deny_list": ("deny", "networks, identities or functions of the request that are refused with 403"),
    "enable": ("enabled", "False lets every request pass"),
    "use_cache": _STORE,
    "fail_open": ("on_store_failure", '"allow" lets requests pass while the store is down'),
    "ip_meta_key": _PROXIES,
    "num_proxies": _PROXIES,
    "ipv4_mask": ("ipv4_prefix", "the bits that identify a client"),
    "ipv6_mask": ("ipv6_prefix", "the bits that identify a client"),
    "exception_class": _DENIED,
    "view": _DENIED,
}
VALUES: Final = {  # the kind of a value → the word elsewhere, with hyphens → a hint
    "key": {
        "user-or-ip": 'here it is "user": the signed-in user, or else the address',
        "remote-address": 'here it is "ip"',
        "remote-addr": 'here it is "ip"',
        "get": "give a function of the request that reads the query",
        "post": "give a function of the request that reads the form",
    },
    "algorithm": {
        "moving-window": 'here it is "sliding-log"; "sliding-window" is as strict, in less memory',
        "sliding-window-counter": 'here it is "sliding-counter"',
        "fixed-window-elastic-expiry": "there is none; a rule with a ban blocks clients that go on",
    },
    "scheme": {
        "async+redis": 'here it is "redis://", in async applications too',
        "async+memory": 'here it is "memory://", in async applications too',
        "redis+unix": 'here it is "unix://"',
        **dict.fromkeys(("memcached", "mongodb", "dynamodb"), 'use a Redis or Valkey server, or "embedded://"'),
    },
}
