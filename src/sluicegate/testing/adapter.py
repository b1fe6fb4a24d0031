"""AdapterExam: tests of one application, built in every framework and requested over HTTP.

It uses only public names of sluicegate, and no framework or test runner.
"""

from __future__ import annotations

import json
import re
import warnings
from typing import Final

from sluicegate.clock import ManualClock
from sluicegate.plan import Decision
from sluicegate.rules.rule import Rule
from sluicegate.testing.charges import AfterLaws
from sluicegate.testing.functions import FunctionLaws, plan_of

_PREFLIGHT: Final = [("Origin", "https://a.example"), ("Access-Control-Request-Method", "POST")]


class AdapterExam(AfterLaws, FunctionLaws):
    """Tests that every adapter must pass. Subclass it and return from `client` this application:

    | path | view |
    |---|---|
    | GET, POST /open | text "open"; no decorator |
    | GET /limited | text "limited"; `@limit("2/minute")` |
    | GET /above | text "above"; `@limit("2/minute")` above the route decorator, where the framework has one |
    | GET /strict | text "strict"; `@limit("1/minute", override_defaults=True)` |
    | POST /posted, GET /posted | text "posted"; `@limit("1/minute", methods=["POST"])` |
    | GET /shared/a, /shared/b | text "a", "b"; `@limit("2/minute", scope="shared")` on each |
    | GET /exempt | text "exempt"; `@exempt` |
    | GET /stream | the chunks "one", "two"; `@limit("2/minute")` |
    | GET /slow | the chunks "one", "two", "three", each added to `calls` when it is made |
    | GET /guess/<word> | 200 if the word is "right", else 401; `@limit("2/minute", charge_when=wrong, scope="guess")` |
    | GET /redirect | 302 to /open |
    | GET /boom | adds "boom" to `calls`, then raises RuntimeError("boom") |
    | GET /items/<name> | text of the name; `@limit("2/minute", key="path:name", scope="items")` |

    `client(**options)` passes the options to the adapter. An exception in a view must give a 500 response. Every view
    adds its name to `calls`; /guess adds its word. `wrong` is `sluicegate.testing.charges.wrong`.

    Set `is_async = True` for an async adapter. Set `charges_preflights = True` if the view of /open handles OPTIONS, or
    if the adapter cannot find out what handles it.
    """

    charges_preflights = False

    def test_without_rules_responses_are_unchanged(self) -> None:
        client = self.client(enabled=True)
        plain, off = client.request("GET", "/open"), self.client(enabled=False).request("GET", "/open")
        assert (plain.status, plain.body, off.body) == (200, b"open", b"open")
        assert [key for key, _ in plain.headers if "ratelimit" in key] == []
        assert dict(plain.headers).keys() == dict(off.headers).keys()

    def test_default_limits_apply_to_the_whole_application(self) -> None:
        client = self.client(default_limits=["2/minute"], clock=ManualClock())
        statuses = [client.request("GET", path).status for path in ("/open", "/redirect", "/open")]
        assert statuses == [200, 302, 429]
        assert client.calls == ["open", "redirect"]

    def test_a_decorated_view_adds_its_own_budget(self) -> None:
        client = self.client(default_limits=["3/minute"], clock=ManualClock())
        assert [client.request("GET", "/limited").status for _ in range(3)] == [200, 200, 429]
        assert client.request("GET", "/open").status == 200  # the refusal charged nothing to the default limit
        assert client.request("GET", "/open").status == 429

    def test_a_decorator_above_the_route_applies(self) -> None:
        client = self.client(clock=ManualClock())
        assert [client.request("GET", "/above").status for _ in range(3)] == [200, 200, 429]

    def test_override_scope_methods_exempt_and_path_keys(self) -> None:
        client = self.client(default_limits=["1/minute"], clock=ManualClock())
        assert [client.request("GET", "/strict").status for _ in range(2)] == [200, 429]
        assert [client.request("GET", "/exempt").status for _ in range(3)] == [200, 200, 200]
        assert [client.request("GET", "/open").status for _ in range(2)] == [200, 429]
        client = self.client(clock=ManualClock())
        assert [client.request("GET", f"/shared/{name}").status for name in "aba"] == [200, 200, 429]
        posted = [client.request(method, "/posted").status for method in ("GET", "POST", "GET", "POST")]
        assert posted == [200, 200, 200, 429]
        assert [client.request("GET", f"/items/{name}").status for name in ("x", "x", "y", "x")] == [200, 200, 200, 429]

    def test_a_rule_may_have_its_own_message_and_answer(self) -> None:
        asked = []

        def note(request: object, decision: Decision) -> None:  # None: the usual response
            asked.append(decision.rule)

        slow = "Posts are slow."
        rules = [
            Rule(name="posts", quota="1/minute", methods=["POST"], error_message=slow, on_denied=note),
            Rule(name="away", quota="1/minute", path="/redirect"),
        ]
        client = self.client(rules=rules, error_message="Slow down.", clock=ManualClock())
        details = []
        for method, path in (("POST", "/open"), ("GET", "/redirect")):
            refused = [client.request(method, path) for _ in range(2)][1]
            details.append((refused.status, json.loads(refused.body)["detail"], refused.one("retry-after")))
        assert details == [(429, slow, "60"), (429, "Slow down.", "60")]
        assert asked == ["posts"]

    def test_a_budget_for_each_method(self) -> None:
        rule = Rule(name="each", quota="1/minute", path="/open", per_method=True)
        client = self.client(rules=[rule], clock=ManualClock())
        asked = [client.request(method, "/open").status for method in ("GET", "POST", "GET", "HEAD", "POST")]
        assert asked == [200, 200, 429, 429, 429]

    def test_the_whole_application_in_shadow(self) -> None:
        client = self.client(mode="shadow", default_limits=["1/minute"], clock=ManualClock())
        answers = [client.request("GET", path) for path in ("/open", "/open", "/limited", "/limited", "/limited")]
        assert [answer.status for answer in answers] == [200] * 5
        assert {answer.one("ratelimit") for answer in answers} == {None}

    def test_ipv4_addresses_of_one_network(self) -> None:
        client = self.client(default_limits=["1/minute"], ipv4_prefix=24, clock=ManualClock())
        peers = ("198.51.100.7", "198.51.100.8", "198.51.101.7")
        assert [client.request("GET", "/open", peer=peer).status for peer in peers] == [200, 429, 200]

    def test_retry_after_is_exact(self) -> None:
        clock = ManualClock()
        client = self.client(default_limits=["2/minute"], clock=clock)
        client.request("GET", "/open")
        clock.advance(7.25)
        client.request("GET", "/open")
        refused = client.request("GET", "/open")
        wait = refused.one("retry-after")
        assert refused.status == 429
        assert wait == "53"  # 52.75 rounded up
        assert re.fullmatch("[1-9][0-9]*", wait)
        clock.advance(52.7)
        assert client.request("GET", "/open").status == 429
        clock.advance(0.3)
        assert client.request("GET", "/open").status == 200

    def test_the_response_to_a_refusal(self) -> None:
        client = self.client(default_limits=["1/minute", "100/day"], clock=ManualClock())
        passed = client.request("GET", "/open")
        assert passed.one("ratelimit-policy") == '"default-minute";q=1;w=60, "default-day";q=100;w=86400'
        assert passed.one("ratelimit") == '"default-minute";r=0;t=60, "default-day";r=99;t=86400'
        assert passed.one("retry-after") is None
        refused = client.request("GET", "/open")
        assert refused.one("content-type") == "application/problem+json"
        assert refused.one("cache-control") == "no-store"
        assert refused.one("ratelimit") == '"default-minute";r=0;t=60'
        problem = json.loads(refused.body)
        assert (problem["status"], problem["violated-policies"]) == (429, ["default-minute"])
        assert client.calls == ["open"]

    def test_plain_text_for_browsers_and_other_header_formats(self) -> None:
        client = self.client(default_limits=["1/minute"], headers="draft-7", clock=ManualClock())
        assert client.request("GET", "/open").one("ratelimit") == "limit=1, remaining=0, reset=60"
        refused = client.request("GET", "/open", headers=[("Accept", "text/html,*/*;q=0.8")])
        assert (refused.one("content-type") or "").startswith("text/")
        silent = self.client(default_limits=["1/minute"], headers=None, clock=ManualClock())
        assert [key for key, _ in silent.request("GET", "/open").headers if "ratelimit" in key] == []
        assert silent.request("GET", "/open").one("retry-after") == "60"

    def test_no_fields_on_redirects(self) -> None:
        answer = self.client(default_limits=["9/minute"]).request("GET", "/redirect")
        assert answer.status == 302
        assert answer.one("ratelimit") is None

    def test_requests_that_match_no_route_are_limited(self) -> None:
        client = self.client(default_limits=["2/minute"], clock=ManualClock())
        answers = [client.request("GET", "/nowhere") for _ in range(3)]
        assert [answer.status for answer in answers] == [404, 404, 429]
        assert answers[0].one("ratelimit") == '"default";r=1;t=60'
        other = self.client(default_limits=["1/minute"], clock=ManualClock())
        assert [other.request("DELETE", "/open").status for _ in range(2)] == [405, 429]

    def test_head_and_get_use_one_budget(self) -> None:
        client = self.client(clock=ManualClock())
        statuses = [client.request(method, "/limited").status for method in ("HEAD", "GET", "HEAD", "GET")]
        assert statuses == [200, 200, 429, 429]
        assert client.request("HEAD", "/limited").body == b""

    def test_a_preflight_is_charged_if_a_view_may_answer_it(self) -> None:
        client = self.client(default_limits=["2/minute"], clock=ManualClock())
        statuses = [client.request("OPTIONS", "/open", headers=_PREFLIGHT).status for _ in range(3)]
        assert [status == 429 for status in statuses] == [False, False, self.charges_preflights]
        assert [client.request("OPTIONS", "/open").status for _ in range(3)][2] == 429

    def test_streams_and_errors_pass_unchanged(self) -> None:
        client = self.client(default_limits=["9/minute"], clock=ManualClock())
        streamed = client.request("GET", "/stream")
        assert (streamed.status, streamed.body) == (200, b"onetwo")
        assert streamed.one("ratelimit") == '"default";r=8;t=60, "stream";r=1;t=60'
        assert client.request("GET", "/boom").status == 500
        assert client.calls.count("boom") == 1  # called exactly once

    def test_forwarding_headers_are_ignored_by_default(self) -> None:
        client = self.client(default_limits=["1/minute"], clock=ManualClock())
        spoofs = [[("X-Forwarded-For", f"203.0.113.{i}")] for i in range(3)]
        with warnings.catch_warnings(action="ignore"):  # SG102: an untrusted proxy is suspected
            assert [client.request("GET", "/open", headers=spoof).status for spoof in spoofs] == [200, 429, 429]
        assert client.request("GET", "/open", peer="198.51.100.10").status == 200
        assert client.request("GET", "/open", peer="::ffff:198.51.100.10").status == 429

    def test_trusted_proxies_name_the_client_address(self) -> None:
        client = self.client(default_limits=["1/minute"], trusted_proxies=["10.0.0.0/8"], clock=ManualClock())

        def ask(forwarded: str) -> int:
            return client.request("GET", "/open", headers=[("X-Forwarded-For", forwarded)], peer="10.0.0.1").status

        assert [ask("6.6.6.6, 203.0.113.7"), ask("7.7.7.7, 203.0.113.7"), ask("203.0.113.8")] == [200, 429, 200]
        assert client.request("GET", "/open", peer=None).status == 200  # no address: another budget

    def test_keys(self) -> None:
        client = self.client(default_limits=["1/minute"], key="header:X-API-Key", clock=ManualClock())

        def ask(key: str) -> int:
            return client.request("GET", "/open", headers=[("X-API-Key", key)]).status

        assert [ask("a"), ask("b"), ask("a")] == [200, 200, 429]
        without = [client.request("GET", "/open").status for _ in range(2)]
        assert without == [200, 429]  # keyed by address: a client cannot escape by omitting the header
        free = self.client(default_limits=["1/minute"], key=_nobody)
        assert [free.request("GET", "/open").status for _ in range(2)] == [200, 200]

    def test_rules_from_settings(self) -> None:
        rules = [{"name": "writes", "quota": "1/minute", "methods": ["POST"], "path": "/op*"}]
        client = self.client(rules=rules, clock=ManualClock())
        statuses = [client.request(method, "/open").status for method in ("GET", "POST", "GET", "POST")]
        assert statuses == [200, 200, 200, 429]

    def test_a_ban_reports_its_end_to_the_second(self) -> None:
        clock = ManualClock()
        ban = {"after": 2, "within": "10 minutes", "duration": "1 hour"}
        client = self.client(rules=[{"name": "all", "quota": "1/minute", "ban": ban}], clock=clock)
        answers = [client.request("GET", "/open") for _ in range(3)]
        assert [answer.status for answer in answers] == [200, 429, 429]
        clock.advance(60.5)
        banned = client.request("GET", "/open")
        assert (banned.status, banned.one("retry-after"), banned.one("cache-control")) == (429, "3540", "no-store")
        assert (banned.one("ratelimit-policy"), banned.one("ratelimit")) == ('"all";q=1;w=60', None)
        kinds = [json.loads(answer.body)["type"].rpartition("#")[2] for answer in (*answers[1:], banned)]
        assert kinds == ["quota-exceeded", "abnormal-usage-detected", "abnormal-usage-detected"]
        assert client.request("GET", "/open", peer="198.51.100.10").status == 200
        clock.advance(3539.5)
        assert client.request("GET", "/open").status == 200

    def test_deny_and_allow_lists_of_addresses(self) -> None:
        denied, free, both = "192.0.2.7", "203.0.113.7", "203.0.113.8"
        lists = {"deny": ["192.0.2.0/24", both], "allow": ["203.0.113.0/24", "2001:db8::1"]}
        client = self.client(default_limits=["1/minute"], clock=ManualClock(), **lists)
        statuses = [client.request("GET", "/open", peer=peer).status for peer in (free, "2001:db8::1") * 3]
        assert statuses == [200] * 6
        for peer in (denied, both, "::ffff:192.0.2.7", "64:ff9b::192.0.2.7"):
            answer = client.request("GET", "/open", peer=peer)
            assert (answer.status, answer.one("cache-control")) == (403, "no-store")
            assert [key for key, _ in answer.headers if key == "retry-after" or "ratelimit" in key] == []
            problem = json.loads(answer.body)
            assert (problem["type"], problem["title"], problem["status"]) == ("about:blank", "Forbidden", 403)
        for method, path in (("GET", "/exempt"), ("GET", "/nowhere"), ("OPTIONS", "/open"), ("HEAD", "/open")):
            assert client.request(method, path, headers=_PREFLIGHT, peer=denied).status == 403
        assert client.calls == ["open"] * 6
        browser = client.request("GET", "/open", headers=[("Accept", "text/html")], peer=denied)
        assert browser.body == b"Forbidden. This client is not allowed here.\n"

    def test_deny_and_allow_lists_of_identities_and_functions(self) -> None:
        lists = {"allow": [("header:x-api-key", "a")], "deny": [_is_denied]}
        client = self.client(default_limits=["1/minute"], key="header:X-API-Key", clock=ManualClock(), **lists)

        def ask(key: str, plan: str = "") -> int:
            return client.request("GET", "/open", headers=[("X-API-Key", key), ("X-Plan", plan)]).status

        assert [ask("a"), ask("a"), ask("b"), ask("b"), ask("a", "denied")] == [200, 200, 200, 429, 403]

    def test_hostile_identities_neither_collide_nor_raise(self) -> None:
        client = self.client(default_limits=["1/minute"], key="header:X-API-Key", clock=ManualClock())
        hostile = ["{a}", "a:b", "a", "x" * 8000, "%00", "é", "a,b", "' OR 1=1 --"]
        statuses = [client.request("GET", "/open", headers=[("X-API-Key", key)]).status for key in hostile * 2]
        assert statuses == [200] * len(hostile) + [429] * len(hostile)


def _nobody(request: object) -> None:
    """A key function that gives no key to any request."""


def _is_denied(request: object) -> bool:
    return plan_of(request) == "denied"
