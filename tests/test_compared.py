"""What the tests of limits, Flask-Limiter, slowapi, django-ratelimit, rack-attack, node-rate-limiter-flexible and
envoy's ratelimit prove, with our tests of the same. And the tests of some rows. docs/compared.md has what differs.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from functools import cache
from typing import Any

import pytest
from flask import Flask
from starlette.applications import Starlette

from docs.pages import DOCS, ROOT, written
from sluicegate import Limiter, ManualClock, Rule, asgi, flask, wsgi
from sluicegate.stores.memory import MemoryStore
from tests.adapters.asgi_client import AsgiClient
from tests.adapters.wsgi_client import WsgiClient
from tests.servers import Server

PAGE = DOCS / "compared.md"
MOST_MISSING = 1
BEHAVIOURS = """
1 holds: A fixed window lets the limit pass, then refuses until it ends
    test_limiter.py::test_s2_a_fixed_window_ends_when_it_said_it_would
2 holds: Windows begin at multiples of the period: calendar windows do, others with a client's first request
    test_calendar.py::test_a_window_has_the_dates_of_the_calendar
3 holds: An ended window starts again without a clean-up
    test_known_errors.py::test_05_an_expiry_of_zero_or_shorter_than_the_state
4 holds: A log forgets each request after one period
    test_limiter.py::test_s2_the_boundary_is_what_the_default_algorithm_mends
5 holds: A sliding counter weighs the window before
    algorithms/test_vectors.py::test_vectors
6 holds: After two idle periods a sliding counter is full
    test_known_errors.py::test_36_its_key_lives_for_two_windows
7 holds: A cost above what is left is refused whole
    test_known_errors.py::test_14_a_cost_above_what_is_left_is_applied_in_part
8 holds: A cost above the limit is refused
    test_known_errors.py::test_15_a_cost_above_the_limit_has_a_time_to_retry
9 holds: A cost may be a function
    test_gate.py::test_cost
10 holds: A cost of a million is cheap
    test_compared.py::test_10_a_cost_of_a_million_is_one_entry
11 holds: A peek charges nothing
    test_limiter.py::test_peek_and_reset
12 holds: Limit, usage and wait can be read
    test_limiter.py::test_a_decision_by_example
13 holds: A new identity has the full limit
    test_limiter.py::test_peek_and_reset
14 holds: One budget can be reset, and all
    stores/test_reset_all.py::test_everything_of_one_identity
    test_pytest_plugin.py::test_budgets_come_back_after_the_block
    test_limiter.py::test_peek_and_reset
15 differs: A store that cannot reset says so
    test_limiter.py::test_what_is_no_store_is_refused_when_the_limiter_is_made
16 differs: A limit of 0 refuses everything
    test_quota.py::test_a_limit_is_a_whole_number_from_1_to_10_15
17 holds: None as a rate means no limit
    test_tiers.py::test_what_a_quota_function_may_return
18 holds: Of 100 threads or tasks exactly the limit passes
    concurrency/test_exactly_the_limit.py::test_16_threads_use_one_limiter_on_a_server
    concurrency/test_exactly_the_limit.py::test_400_tasks_on_a_server
19 differs: A server slower than the window breaks no count
    stores/test_redis.py::test_a_dead_and_a_hung_server_are_store_errors_soon
20 holds: Refused requests count, or not
    test_limiter.py::test_s3_refusals_are_not_recorded_unless_asked
21 holds: A client can be blocked beyond the window, also by hand
    stores/test_bans.py::test_a_ban_begins_with_the_last_strike_and_ends_to_the_microsecond
22 holds: Units can be given back outside of a request
    test_reservation.py::test_a_settled_reservation_costs_the_actual_cost
23 differs: Requests can be queued
24 differs: A second limiter serves bursts
    test_limiter.py::test_s6_the_funnel
25 holds: A decision says which limit refused
    test_plan.py::test_decisions
26 differs: A memory store can be pickled
    test_values.py::test_what_holds_connections_says_that_it_cannot_be_copied
27 holds: `1 per second; 10 per minute` holds both
    test_examples.py::test_two_limits_apply_at_once_and_health_has_none
28 holds: One prefix shares budgets, another does not
    test_compared.py::test_28_the_prefix_says_who_shares
29 holds: A limit of a route replaces the defaults or adds
    sluicegate/testing/adapter.py::test_override_scope_methods_exempt_and_path_keys
    sluicegate/testing/adapter.py::test_a_decorated_view_adds_its_own_budget
30 holds: Application-wide limits share one budget
    sluicegate/testing/adapter.py::test_default_limits_apply_to_the_whole_application
31 holds: A named limit is shared by routes
    sluicegate/testing/adapter.py::test_override_scope_methods_exempt_and_path_keys
32 differs: After a refusal, other limits may stay uncharged
    test_gate.py::test_all_or_nothing_over_defaults_rules_and_marks
    test_compared.py::test_32_of_two_limiters_the_outer_keeps_its_charge_unless_its_rule_gives_it_back
33 holds: The order of decorators does not matter
    adapters/test_django_views.py::test_decorators_stack_and_are_charged_together
34 holds: Nor the order of methods
    test_compared.py::test_34_the_order_of_methods_does_not_matter
35 holds: A client refused often is refused throughout
    stores/test_bans.py::test_a_banned_identity_is_refused_by_every_rule_that_names_the_ban_and_by_no_other
36 holds: One refusal refuses the request, and each limit has its status
    test_plan.py::test_outcomes_are_in_rule_order
37 holds: `1/SECOND`, `1 per 3 hour`, `100/10s`
    test_quota.py::test_accepted
38 holds: Several quotas in one text
    test_quota.py::test_several
39 holds: An unknown unit, None and words are errors
    test_quota.py::test_refused
40 holds: A wrong algorithm, URL or missing package is an error at the start
    test_limiter.py::test_a_wrong_limiter_cannot_be_made
    test_extras.py::test_a_store_that_cannot_be_opened
41 differs: A wrong limit in a decorator is logged, and the defaults hold
    adapters/test_slips.py::test_a_wrong_quota_names_the_decorator
42 differs: A wrong limit from a function is logged
    test_tiers.py::test_what_cannot_be_seen_at_start_up_is_an_error_at_once
43 differs: Arguments win over the configuration
    adapters/test_flask.py::test_fl01_wrong_configuration_cannot_start
44 holds: One flag turns everything off
    adapters/test_starlette_limit.py::test_disabled_everything_passes
45 missing: Limits have equality, a hash and an order
    test_quota.py::test_a_quota_is_a_value
46 holds: Each mistake in a file names its place
    test_settings.py::test_an_error_names_the_file_and_the_rule
47 holds: A failed reload keeps the configuration
    overrides/test_steering.py::test_a_wrong_file_of_rules_changes_nothing
48 holds: A limit that is no number is refused
    test_quota.py::test_refused_when_not_text
49 differs: A threshold for local blocking below the limit is refused
    stores/test_deny_cache.py::test_until_a_number_changes_or_the_staleness
50 differs: A limit without a key is an error
    test_gate.py::test_the_key_of_a_rule_or_else_of_the_settings
51 holds: URLs with hosts, IPv6, sockets, passwords
    stores/test_redis.py::test_every_scheme
    stores/test_urls.py::test_what_is_wrong_with_it
52 holds: Passwords are hidden in logs
    stores/test_urls.py::test_no_error_shows_a_password
53 holds: Each address has its budget
    sluicegate/testing/adapter.py::test_forwarding_headers_are_ignored_by_default
54 holds: Forwarded addresses only by a setting
    sluicegate/testing/adapter.py::test_trusted_proxies_name_the_client_address
    test_address.py::test_wrong_proxies
55 holds: Addresses of a prefix share a budget
    test_address.py::test_a_prefix_of_another_length
    sluicegate/testing/adapter.py::test_ipv4_addresses_of_one_network
56 holds: A key from a header, query, form, user, dotted path or function
    test_key.py::test_keys
    sluicegate/testing/adapter.py::test_keys
57 holds: A missing header is no error
    test_key.py::test_a_key_that_finds_nothing_falls_back_to_the_address_behind_the_proxies
58 holds: The key None means no limit
    sluicegate/testing/adapter.py::test_keys
59 differs: Identities are normalised
    test_identity.py::test_an_account_has_one_name
60 holds: A visitor and a user have separate budgets
    adapters/test_django_users.py::test_users_have_own_budgets_and_anonymous_clients_one_per_address
61 holds: The prefix is free, and a colon in an identity survives
    test_identity.py::test_different_identities_have_different_texts
    stores/test_redis.py::test_a_prefix_cannot_change_the_slot_of_a_key
62 holds: By endpoint, or by its parameters
    sluicegate/testing/adapter.py::test_override_scope_methods_exempt_and_path_keys
63 holds: Split by a path parameter
    sluicegate/testing/adapter.py::test_override_scope_methods_exempt_and_path_keys
64 holds: Paths of a pattern share a limit
    sluicegate/testing/adapter.py::test_rules_from_settings
65 holds: For each method, or for some
    sluicegate/testing/adapter.py::test_a_budget_for_each_method
    sluicegate/testing/adapter.py::test_override_scope_methods_exempt_and_path_keys
66 holds: Exempt routes, groups, static files, conditions
    adapters/test_flask_views.py::test_fl03_blueprints_nested_and_registered_twice
    adapters/test_flask.py::test_fl04_errors_redirects_and_options_are_counted_and_static_files_are_not
    test_gate.py::test_when_a_rule_applies
67 holds: Exempt from the defaults alone
    adapters/test_exempt_from_defaults.py::test_only_the_defaults_are_dropped
68 differs: The allowlist wins over the blocklist
    test_access.py::test_a_client_on_both_lists_is_denied_and_no_other_is_affected
69 holds: Count by the status of the response
    sluicegate/testing/charges.py::test_only_wrong_guesses_are_charged
70 holds: A limit that depends on the request
    test_tiers.py::test_each_tier_has_its_quotas
71 holds: Observe only
    sluicegate/testing/functions.py::test_a_shadow_rule_refuses_nobody_and_is_not_in_the_response
72 holds: Inside a function, and as a block
    adapters/test_charge.py::test_a_charge_counts_refuses_and_joins_the_fields
73 holds: Classes, methods, decorated classes
    adapters/test_django_views.py::test_dj03_a_method_has_its_own_budget
    adapters/test_flask_views.py::test_fl03_a_view_class
74 holds: Sync and async endpoints
    adapters/test_starlette_limit.py::test_st06_every_endpoint_is_limited_wherever_it_is
75 differs: An endpoint without a request parameter is an error
    adapters/test_starlette_limit.py::test_st06_every_endpoint_is_limited_wherever_it_is
76 holds: 429 with a body that names the limit, or your own
    sluicegate/testing/adapter.py::test_the_response_to_a_refusal
    sluicegate/testing/adapter.py::test_a_rule_may_have_its_own_message_and_answer
    adapters/test_flask.py::test_on_denied_returns_what_a_view_may_return
77 holds: The framework's handler of 429 sees it
    adapters/test_flask.py::test_fl02_errorhandler_429_is_used_and_the_fields_stay
78 holds: A function gets the refusal and returns the response
    adapters/test_flask.py::test_on_denied_gets_request_and_decision_and_may_return_none
79 holds: Fields for limit, rest and reset
    test_http.py::test_dialects
80 holds: Waiting `Retry-After` leads to 200
    sluicegate/testing/adapter.py::test_retry_after_is_exact
81 differs: `Retry-After` on allowed responses
    test_http.py::test_retry_after
82 holds: The application's later `Retry-After` is kept
    adapters/test_retry_after_dates.py::test_the_later_of_both_is_sent
83 holds: The fields show a limit that counts responses
    sluicegate/testing/charges.py::test_the_fields_include_what_was_refunded
84 holds: The application can read the decision
    adapters/test_starlette.py::test_c22_the_decision_can_be_read_by_the_view
85 holds: Each refusal can be observed once
    adapters/test_flask.py::test_fl10_the_signal_has_the_application_and_a_failing_listener_changes_nothing
86 holds: Fields also when a view returns plain data
    adapters/test_fastapi.py::test_fa04_every_response_has_the_fields
87 holds: Errors reach the caller, or the request passes
    test_gate.py::test_without_the_store
88 differs: Refuse by default
    test_gate.py::test_each_rule_may_have_its_own_policy
89 holds: Fall back to memory, back off, return
    stores/test_breaker.py::test_the_back_off_doubles_to_a_second
    stores/test_fallback.py::test_it_recovers_within_two_seconds_at_ten_requests_a_second
90 differs: A second store as insurance
    test_gate.py::test_without_the_store
91 holds: Each call has a time limit
    stores/test_redis.py::test_a_dead_and_a_hung_server_are_store_errors_soon
92 holds: While the store is away, decide at once
    stores/test_fallback.py::test_an_outage_costs_only_the_first_request_a_deadline_and_some_probes
93 holds: One error type, with the cause
    test_errors.py::test_a_store_error_names_its_cause
94 holds: Starts without a server
    faults/test_outages.py::test_a_site_starts_while_its_server_is_down
95 holds: A wrong store is an error; a key that expires meanwhile is none
    test_limiter.py::test_what_is_no_store_is_refused_when_the_limiter_is_made
    test_known_errors.py::test_05_an_expiry_of_zero_or_shorter_than_the_state
96 holds: An unsuitable store says why
    test_limiter.py::test_a_sync_store_in_an_async_limiter_is_refused_and_the_reverse
97 holds: Keys expire
    stores/test_redis.py::test_every_key_expires_and_not_before_its_state
98 holds: Refused clients are remembered in the process
    stores/test_deny_cache.py::test_a_flood_is_refused_without_the_store
99 differs: Expiries are spread at random
    stores/test_redis.py::test_every_key_expires_and_not_before_its_state
100 holds: Limits per second may use another server
    adapters/test_flask.py::test_fl05_each_has_a_config_of_its_own_and_the_view_reads_one_decision
101 holds: Counters for hits, refusals, shadow
    test_events.py::test_the_result_of_a_rule
    observability/test_metrics.py::test_decisions_are_counted_by_endpoint_and_outcomes_by_rule
102 holds: A request without a limit does not touch the store
    test_gate.py::test_without_a_rule_the_store_is_not_called
103 holds: Redis alone, Sentinel, cluster, socket, TLS
    stores/test_redis.py::test_every_scheme
    stores/test_sentinel.py::test_a_planned_failover_is_followed_without_an_error
    stores/test_cluster.py::test_a_plan_across_slots_is_all_or_nothing
104 holds: Stores of your own
    test_charges.py::test_a_store_that_cannot_refund_refuses_the_rule
105 holds: Commands show, test and clear limits
    cli/test_budgets.py::test_a_customer_is_blocked_shown_and_let_in_again
106 differs: Health turns bad without the store
    stores/test_breaker.py::test_one_line_and_one_call_for_each_transition
107 holds: A limiter may be made before the application
    adapters/test_flask.py::test_fl01_one_instance_on_two_apps_with_their_own_configuration
    adapters/test_flask_views.py::test_a_decorated_view_without_a_limiter_is_an_error
"""
ROWS = [
    (int(number), kind, what, tests.split())
    for number, kind, what, tests in re.findall(r"^(\d+) (\w+): (.+)\n((?: .+\n)*)", BEHAVIOURS, re.MULTILINE)
]


def test_the_page_counts_all_and_has_those_that_differ() -> None:
    assert [number for number, *_ in ROWS] == list(range(1, 108))
    kinds = Counter(kind for _, kind, *_ in ROWS)
    assert set(kinds) == {"holds", "differs", "missing"}
    assert kinds["missing"] <= MOST_MISSING
    page = " ".join(written(PAGE).split())
    (said,) = re.findall(r"(\d+) hold here too, (\d+) differ on purpose, and (\d+) is", page)
    assert dict(zip(("holds", "differs", "missing"), map(int, said), strict=True)) == kinds
    assert [what for _, kind, what, _ in ROWS if kind != "holds" and f"**{what}" not in page] == []


@cache
def text_of(path: str) -> str:
    return (ROOT / ("src" if path.startswith("sluicegate/") else "tests") / path).read_text("utf-8")


@pytest.mark.parametrize(("number", "kind", "what", "tests"), ROWS)
def test_every_named_test_exists(number: int, kind: str, what: str, tests: list[str]) -> None:
    assert tests or kind != "holds"
    named = [each.split("::") for each in tests]
    missing = [name for path, name in named if not re.search(rf"def {name}\(", text_of(path))]
    assert not missing


def test_10_a_cost_of_a_million_is_one_entry() -> None:
    """In a list of a million entries this would take seconds and megabytes."""
    limiter = Limiter(store := MemoryStore())
    assert limiter.hit("1000000/day", "alice", cost=1_000_000).remaining == 0
    (entry,) = store._table._queue
    assert len(repr(entry.state)) < 200


def test_28_the_prefix_says_who_shares(server: Server) -> None:
    clock = ManualClock()
    same, other = (Limiter(server.url, prefix=f"sg:28:{name}", clock=clock) for name in ("one", "two"))
    with same, other, Limiter(server.url, prefix="sg:28:one", clock=clock) as again:
        assert [each.hit("1/day", "alice").allowed for each in (same, again, other)] == [True, False, True]


@pytest.mark.parametrize(
    ("refund_when", "refuses"), [(None, "outer"), (lambda response: response.status_code == 429, "inner")]
)
@pytest.mark.parametrize("kind", ["asgi", "wsgi", "flask"])
def test_32_of_two_limiters_the_outer_keeps_its_charge_unless_its_rule_gives_it_back(
    kind: str, refund_when: Any, refuses: str
) -> None:
    """All or nothing holds for the rules of one limiter: they are one plan."""
    outer = Rule(name="outer", quota="3/hour", refund_when=refund_when)
    inner = Rule(name="inner", quota="1/hour")
    client: Any
    if kind == "flask":
        app = Flask("app")
        flask.RateLimiter(app, rules=[outer])
        flask.RateLimiter(app, rules=[inner], config_prefix=None)
        client = WsgiClient(app)
    elif kind == "wsgi":
        page = wsgi.RateLimitMiddleware(Flask("app"), rules=[inner])
        client = WsgiClient(wsgi.RateLimitMiddleware(page, rules=[outer]))
    else:
        client = AsgiClient(
            asgi.RateLimitMiddleware(asgi.RateLimitMiddleware(Starlette(), rules=[inner]), rules=[outer])
        )
    answers = [client.request("GET", "/") for _ in range(4)]
    assert [answer.status for answer in answers] == [404, 429, 429, 429]
    assert json.loads(answers[3].body)["violated-policies"] == [refuses]


def test_34_the_order_of_methods_does_not_matter() -> None:
    rules = [Rule(name="writing", quota="5/minute", methods=methods) for methods in (["PUT", "POST"], ["POST", "PUT"])]
    assert rules[0] == rules[1]
    assert rules[0].terms("sliding-window") == rules[1].terms("sliding-window")
