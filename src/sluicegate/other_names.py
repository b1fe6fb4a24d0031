"""The names that other rate limiters give to options and values, and what they are called here: for errors."""

from __future__ import annotations

from typing import Final

_ELSEWHERE: Final = {  # the names elsewhere → (the name here, if there is one, how it is used here)
    "key_func identifier": ("key", '"user", "ip", "header:Name" or a function of the request'),
    "limit_value limits limit_string times seconds minutes hours milliseconds rate": (
        "quota",
        'one text, such as "10/minute; 100/day"',
    ),
    "application_limits ratelimit_application default": (
        "default_limits",
        "each is one budget for the whole application",
    ),
    "default_limits_per_method defaults_per_method application_limits_per_method application_per_method per_method": (
        "per_method",
        "True gives each method a budget of its own",
    ),
    "default_limits_exempt_when defaults_exempt_when application_limits_exempt_when application_exempt_when": (
        "when",
        "it has the opposite meaning, in a rule of the settings",
    ),
    "exempt_when skip_if": ("when", "it has the opposite meaning: the rule applies if it is true"),
    "default_limits_deduct_when defaults_deduct_when application_limits_deduct_when application_deduct_when "
    "deduct_when": (
        "charge_when",
        "a function of the response; the request is charged before the view and refunded",
    ),
    "default_limits_cost defaults_cost application_limits_cost application_cost": ("cost", "of a rule in the settings"),
    "storage_uri storage_url storage redis backend use_cache": ("store", 'a URL such as "redis://localhost:6379/0"'),
    "storage_options": (
        "store",
        "options are in its URL, and timeouts are `deadline`; or give a RedisStore with a client of your own",
    ),
    "strategy using": ("algorithm", '"sliding-window", "fixed-window", "gcra" and others'),
    "headers_enabled header_name_mapping header_limit header_remaining header_reset": (
        "headers",
        "the name of a dialect, names of your own, or None for no fields",
    ),
    "retry_after header_retry_after header_retry_after_value": ("", "Retry-After is in every refusal, in seconds"),
    "fail_on_first_breach": ("", "a refused request is charged nowhere"),
    "request_identifier": ("", "the scope of a limit says which views share it"),
    "key_prefix cache_prefix": ("prefix", "it begins every key in a shared server"),
    "swallow_errors fail_open": ("on_store_failure", '"allow" lets requests pass while the store is down'),
    "in_memory_fallback in_memory_fallback_enabled": (
        "on_store_failure",
        '"local" counts in this process while the store is down',
    ),
    "on_breach on_meta_breach on_breach_callback on_meta_breach_callback callback http_callback exception_class view": (
        "on_denied",
        "a function of (request, decision) that returns the response",
    ),
    "meta_limits meta": ("ban", "Ban(after=10, within=60, duration=3600) blocks clients that are refused too often"),
    "request_filter allow_list": ("allow", "networks, identities or functions of the request that always pass"),
    "auto_check enable ratelimit_enabled": ("enabled", "False lets every request pass"),
    "key_style": ("scope", "a budget belongs to the view, whatever its URL; scope shares it"),
    "weight": ("cost", "units for each request"),
    "timeout": ("deadline", "the seconds that a request waits for a silent server"),
    "namespace group throttle_scope": ("scope", "rules and views of one scope share a budget"),
    "for length": ("duration", "the length of the first ban"),
    "block": ("mode", 'mode="shadow" is block=False; Decision.would_refuse says which rules would have refused'),
    "shadow": ("mode", 'mode="shadow" counts and never refuses'),
    "deny_list": ("deny", "networks, identities or functions of the request that are refused with 403"),
    "ip_meta_key num_proxies": ("trusted_proxies", "a number of hops, or the networks of your proxies"),
    "ipv4_mask": ("ipv4_prefix", "the bits that identify a client"),
    "ipv6_mask": ("ipv6_prefix", "the bits that identify a client"),
}
OPTIONS: Final = {name: here for names, here in _ELSEWHERE.items() for name in names.split()}
"""By each option of Flask-Limiter, slowapi, fastapi-limiter, throttled-py, django-ratelimit, django-smart-ratelimit,
Django REST framework and others.
"""

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
