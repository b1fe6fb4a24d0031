"""The client's address: the shared table, the grouping, and what other limiters got wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluicegate.address import (
    NO_PEER,
    Trust,
    _forwarded_for,
    client_address,
    client_network,
    group,
    is_rewritten,
    parse_address,
)
from sluicegate.errors import SettingsError

VECTORS: Final = json.loads((Path(__file__).parent / "vectors" / "addresses.json").read_text())
NOBODY: Final = Trust()
PROXY: Final = Trust.of("10.0.0.0/8")
HOP: Final = Trust.of(1)
FORWARDED: Final = Trust.of(1, "Forwarded")


@pytest.mark.parametrize("row", VECTORS, ids=lambda row: row["name"])
def test_the_table(row: dict[str, Any]) -> None:
    trust = Trust.of(row["trusted_proxies"], row["trusted_header"])
    assert client_address(row["peer"], row["lines"], trust) == row["expect"]


def test_no_two_rows_have_one_name() -> None:
    assert len({row["name"] for row in VECTORS}) == len(VECTORS)


@pytest.mark.parametrize(
    ("address", "budget"),
    [  # which addresses share a budget
        ("203.0.113.7", "203.0.113.7"),
        ("203.0.113.8", "203.0.113.8"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:db8::ffff:ffff:ffff:ffff", "2001:db8::/64"),
        ("2001:db8:0:0:8000::", "2001:db8::/64"),
        ("2001:db8:0:1::", "2001:db8:0:1::/64"),
        ("2001:DB8:0000::0001", "2001:db8::/64"),
        ("::ffff:203.0.113.7", "203.0.113.7"),
        ("::ffff:cb00:7107", "203.0.113.7"),
        ("::FFFF:203.0.113.8", "203.0.113.8"),
        ("64:ff9b::203.0.113.7", "203.0.113.7"),
        ("64:ff9b::cb00:7107", "203.0.113.7"),
        ("64:ff9b:1::203.0.113.7", "64:ff9b:1::cb00:7107"),  # RFC 8215: a translator's clients do not share
        ("64:ff9b:1:abcd::203.0.113.8", "64:ff9b:1:abcd::cb00:7108"),
        ("64:ff9b:2::203.0.113.7", "64:ff9b:2::/64"),
        ("::203.0.113.7", "::/64"),  # IPv4-compatible: long deprecated, and not mapped
        ("::1", "::1"),
        ("::2", "::/64"),
        ("127.0.0.1", "127.0.0.1"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:0:4136:e378::/64"),  # Teredo
        ("2002:cb00:7107:1::1", "2002:cb00:7107:1::/64"),  # 6to4
        ("fe80::1%eth0", "fe80::/64"),
        ("fe80::1%eth1", "fe80::/64"),
    ],
)
def test_grouping(address: str, budget: str) -> None:
    parsed = parse_address(address)
    assert parsed is not None
    assert group(parsed) == client_address(address, [], NOBODY) == budget


@pytest.mark.parametrize(
    ("prefix", "address", "budget"),
    [
        (56, "2001:db8:1:2ff::1", "2001:db8:1:200::/56"),
        (48, "2001:db8:1:2ff::1", "2001:db8:1::/48"),
        (128, "2001:db8::1", "2001:db8::1/128"),
        (1, "ffff::1", "8000::/1"),
        (48, "::1", "::1"),
        (48, "203.0.113.7", "203.0.113.7"),
        (48, "::ffff:203.0.113.7", "203.0.113.7"),
        (48, "64:ff9b::203.0.113.7", "203.0.113.7"),
        (48, "testclient", "peer testclient"),
        (48, None, NO_PEER),
    ],
)
def test_a_prefix_of_another_length(prefix: int, address: str | None, budget: str) -> None:
    assert client_address(address, [], NOBODY, prefix=prefix) == budget
    if address not in (None, "testclient"):
        assert client_address("10.0.0.1", [str(address)], PROXY, prefix=prefix) == budget
        assert client_address("10.0.0.1", [f'for="{address}"'], FORWARDED, prefix=prefix) == budget


@pytest.mark.parametrize(
    ("peer", "lines", "header", "rewritten"),
    [  # whether the peer has been taken from the header
        ("203.0.113.7", ["203.0.113.7"], "X-Forwarded-For", True),
        ("203.0.113.7", ["6.6.6.6", "203.0.113.7, 10.0.0.2"], "X-Forwarded-For", True),
        ("203.0.113.7", ["::ffff:203.0.113.7"], "X-Forwarded-For", True),
        ("2001:db8::1", ['for="[2001:DB8::1]:443"'], "Forwarded", True),
        ("10.0.0.1", ["203.0.113.7"], "X-Forwarded-For", False),
        ("203.0.113.8", ["203.0.113.7"], "X-Forwarded-For", False),
        (None, ["203.0.113.7"], "X-Forwarded-For", False),
        ("testclient", ["testclient"], "X-Forwarded-For", False),
        ("203.0.113.7", ["203.0.113.7" + ",6.6.6.6" * 50_000], "X-Forwarded-For", False),
    ],
)
def test_a_peer_that_the_server_has_rewritten(peer: str | None, lines: list[str], header: str, rewritten: bool) -> None:
    assert is_rewritten(peer, lines, header) is rewritten


# Published advisories that concern addresses: peer, lines of the header, trusted proxies → the budget
ADVISORIES: dict[str, list[tuple[str | None, list[str], Trust, str]]] = {
    "CVE-2025-59152 (Litestar): the header is not believed by default": [
        ("198.51.100.9", ["203.0.113.7"], NOBODY, "198.51.100.9"),
        ("127.0.0.1", ["203.0.113.7"], NOBODY, "127.0.0.1"),
    ],
    "CVE-2025-46814 (fastapi-guard): an extra value on the left is not the client": [
        ("10.0.0.1", ["1.1.1.1, 203.0.113.7"], PROXY, "203.0.113.7"),
        ("10.0.0.1", ["1.1.1.1, 2.2.2.2, 203.0.113.7"], HOP, "203.0.113.7"),
    ],
    "django-allauth 65.14.2: a count of proxies, and none by default": [
        ("198.51.100.9", ["1.1.1.1"], Trust.of(None), "198.51.100.9"),
        ("10.0.0.1", ["1.1.1.1, 203.0.113.7, 10.0.0.2"], Trust.of(2), "203.0.113.7"),
        ("10.0.0.1", ["1.1.1.1"], Trust.of(2), "10.0.0.1"),  # fewer than the proxies would have written
    ],
    "CVE-2026-23848 (MyTube): a new address in the header is no new budget": [
        ("198.51.100.9", [f"203.0.113.{number}"], NOBODY, "198.51.100.9") for number in range(5)
    ],
    "CVE-2026-110723, CVE-2026-110724, CVE-2026-110726 (api-gateway): the leftmost element is the client's own word": [
        ("10.0.0.1", [f"{number}.1.1.1, 203.0.113.7"], PROXY, "203.0.113.7") for number in range(1, 5)
    ],
    "CVE-2026-30827 (express-rate-limit): all of IPv4 in one bucket": [
        (f"::ffff:203.0.113.{number}", [], NOBODY, f"203.0.113.{number}") for number in (7, 8, 200)
    ],
    "express-rate-limit 8.6.2: mapped by its bits and not by its spelling": [
        (spelling, [], NOBODY, "203.0.113.7")
        for spelling in ("::ffff:203.0.113.7", "::ffff:cb00:7107", "0:0:0:0:0:ffff:cb00:7107", "::FFFF:CB00:7107")
    ],
    "GHSA-5847-rm3g-23mw (OpenClaw): two spellings, two budgets": [
        ("1.2.3.4", [], NOBODY, "1.2.3.4"),
        ("::ffff:1.2.3.4", [], NOBODY, "1.2.3.4"),
        ("10.0.0.1", ["::ffff:1.2.3.4"], PROXY, "1.2.3.4"),
    ],
    "CVE-2026-45364 (Better Auth): one /64, and every spelling of it": [
        (address, [], NOBODY, "2001:db8:0:1::/64")
        for address in ("2001:db8:0:1::a", "2001:db8:0:1::b", "2001:0DB8:0:1:0:0:0:A", "2001:db8::1:a:b:c:d")
    ],
    "CVE-2026-39409, CVE-2026-47674 (Hono): a mapped proxy is in its network": [
        ("::ffff:10.0.0.1", ["203.0.113.7"], PROXY, "203.0.113.7"),
        ("::ffff:a00:1", ["203.0.113.7"], PROXY, "203.0.113.7"),
        ("10.0.0.1", ["203.0.113.7, ::ffff:10.0.0.2"], PROXY, "203.0.113.7"),
        ("10.0.0.1", ["203.0.113.7"], Trust.of("::ffff:10.0.0.0/104"), "203.0.113.7"),
        ("0:0:0::0:1", ["203.0.113.7"], Trust.of("::1"), "203.0.113.7"),
    ],
    "slowapi, Litestar: no peer is not 127.0.0.1": [
        (None, [], NOBODY, NO_PEER),
        ("", [], NOBODY, NO_PEER),
        (None, ["203.0.113.7"], Trust.of("127.0.0.1"), NO_PEER),
    ],
    "ProxyFix: a port is not a part of the key": [
        ("10.0.0.1", ["203.0.113.7:1"], PROXY, "203.0.113.7"),
        ("10.0.0.1", ["203.0.113.7:65535"], PROXY, "203.0.113.7"),
        ("203.0.113.7:1", [], NOBODY, "203.0.113.7"),
    ],
    "Forwarded: a Host of the client's, quoted by the proxy, is no address": [
        ("10.0.0.1", ['for=203.0.113.7;host="a,for=6.6.6.6;x="'], FORWARDED, "203.0.113.7"),
        ("10.0.0.1", ['for=203.0.113.7;host="a,for=6.6.6.6"'], FORWARDED, "203.0.113.7"),
        ("10.0.0.1", ['for=203.0.113.7;host="\\",for=6.6.6.6;x=\\""'], FORWARDED, "203.0.113.7"),
        ("10.0.0.1", ['host=",for=6.6.6.6,";for=203.0.113.7'], FORWARDED, "203.0.113.7"),
    ],
    "Forwarded: a quote that the client left open hides no proxy's element": [
        ("10.0.0.1", ['for="6.6.6.6', "for=203.0.113.7"], FORWARDED, "203.0.113.7"),
        ("10.0.0.1", ['x="', 'for="203.0.113.7:1"'], FORWARDED, "203.0.113.7"),
        ("10.0.0.1", ['x="\\', 'for="203.0.113.7:1"'], FORWARDED, "203.0.113.7"),
        ("10.0.0.1", ['x="', "for=203.0.113.7", "for=10.0.0.2"], Trust.of(2, "Forwarded"), "203.0.113.7"),
    ],
}


@pytest.mark.parametrize("cases", ADVISORIES.values(), ids=ADVISORIES)
def test_what_others_got_wrong(cases: list[tuple[str | None, list[str], Trust, str]]) -> None:
    for peer, lines, trust, budget in cases:
        assert client_address(peer, lines, trust) == budget


@pytest.mark.parametrize(
    ("proxies", "header", "trust"),
    [
        (None, "X-Forwarded-For", Trust()),
        (1, "X-Forwarded-For", Trust(hops=1)),
        (32, "Forwarded", Trust(hops=32, header="Forwarded")),
        ("unix", "X-Forwarded-For", Trust(unix=True)),
        (["unix"], "X-Real-IP", Trust(unix=True, header="X-Real-IP")),
        (("unix", "unix"), "X-Forwarded-For", Trust(unix=True)),
        (iter(["unix"]), "X-Forwarded-For", Trust(unix=True)),
    ],
)
def test_trusted_proxies_and_their_header(proxies: object, header: str, trust: Trust) -> None:
    assert Trust.of(proxies, header) == trust


@pytest.mark.parametrize(
    ("proxies", "networks"),
    [
        ("10.0.0.0/8", ["10.0.0.0/8"]),
        ("10.0.0.1", ["10.0.0.1/32"]),
        (["10.0.0.0/8", "unix", "2001:db8::/32"], ["10.0.0.0/8", "2001:db8::/32"]),
        (["::ffff:10.0.0.0/104"], ["10.0.0.0/8"]),
        (["::/0"], ["::/0"]),
    ],
)
def test_networks_to_trust(proxies: object, networks: list[str]) -> None:
    assert [str(network) for network in Trust.of(proxies).networks] == networks


PROXIES_EXPECTED: Final = 'give a number of hops, or networks like ["10.0.0.0/8", "unix"]'


@pytest.mark.parametrize(
    ("proxies", "given", "problem"),
    [
        (0, 0, "not between 1 and 32 hops"),
        (-1, -1, "not between 1 and 32 hops"),
        (33, 33, "not between 1 and 32 hops"),
        (True, True, "neither a number nor networks"),
        (1.5, 1.5, "neither a number nor networks"),
        ([], [], "empty"),
        ("", "", "'' does not appear to be an IPv4 or IPv6 network"),
        ("*", "*", "'*' does not appear to be an IPv4 or IPv6 network"),
        ("localhost", "localhost", "'localhost' does not appear to be an IPv4 or IPv6 network"),
        (["10.0.0.0/8", "10.0.0.0/33"], "10.0.0.0/33", "does not appear to be an IPv4 or IPv6 network"),
        ("10.0.0.1/8", "10.0.0.1/8", "10.0.0.1/8 has host bits set"),
        ("10.0.0.0/8, 127.0.0.1", "10.0.0.0/8, 127.0.0.1", "does not appear to be an IPv4 or IPv6 network"),
        (["10.0.0.0/8", None], None, "does not appear to be an IPv4 or IPv6 network"),
        ([10], 10, "does not appear to be an IPv4 or IPv6 network"),
    ],
)
def test_wrong_proxies(proxies: object, given: object, problem: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Trust.of(proxies)
    assert (caught.value.what, caught.value.given) == ("trusted_proxies", given)
    assert problem in caught.value.problem
    assert caught.value.expected.endswith(PROXIES_EXPECTED)


@pytest.mark.parametrize("header", ["", "X Forwarded", "X-Forwarded-For:", "X-Forwarded-For\n", "für", None, 5, ["a"]])
def test_wrong_headers(header: object) -> None:
    with pytest.raises(SettingsError, match='use "X-Forwarded-For" or "Forwarded"') as caught:
        Trust.of(1, header)
    assert (caught.value.what, caught.value.given) == ("trusted_header", header)


@pytest.mark.parametrize(
    ("element", "budget"),
    [
        ("for=203.0.113.7;proto=https", "203.0.113.7"),
        ("for=203.0.113.7;", "203.0.113.7"),
        ("for=203.0.113.7 ; ", "203.0.113.7"),
        (";for=203.0.113.7", "203.0.113.7"),  # RFC 7239 §4: a pair may be empty
        ("proto=https;;for=203.0.113.7", "203.0.113.7"),
        ('host="for=6.6.6.6";for=203.0.113.7', "203.0.113.7"),
        ("for=6.6.6.6;for=203.0.113.7", "10.0.0.1"),  # with two of them, neither counts
        ("for=203.0.113.7;for=203.0.113.7", "10.0.0.1"),
        ("for=6.6.6.6;proto=https;FOR=203.0.113.7", "10.0.0.1"),
        ("for=203.0.113.7;;for=6.6.6.6", "10.0.0.1"),
        ('for="203.0.113.7";For="6.6.6.6:80"', "10.0.0.1"),
        ("for=;for=203.0.113.7", "10.0.0.1"),
        ("host=x;for=6.6.6.6;y;for=203.0.113.7", "10.0.0.1"),  # a Host of the client's that no proxy has quoted
        ('host=x;for=6.6.6.6;y="a;for=203.0.113.7', "10.0.0.1"),
        ("for=203.0.113.7;secure", "10.0.0.1"),  # what cannot be read might hold another
    ],
)
def test_an_element_names_a_client_if_it_is_read_whole_and_has_one_for(element: str, budget: str) -> None:
    for trust in (FORWARDED, Trust.of("10.0.0.0/8", "Forwarded")):
        assert client_address("10.0.0.1", [element], trust) == budget
        assert client_address("10.0.0.1", ["for=6.6.6.6", element], trust) == budget


def test_the_walk_ends_at_an_ambiguous_element() -> None:
    trust = Trust.of(["10.0.0.0/8"], "Forwarded")
    assert client_address("10.0.0.1", ["for=6.6.6.6, for=7.7.7.7;for=8.8.8.8, for=10.0.0.2"], trust) == "10.0.0.2"


NAMES: Final = st.sampled_from(["for", "FOR", "fo", "host", "by", "x-y"])
PLAIN: Final = st.text(st.sampled_from("ab:.=[]10_\\"), max_size=6)
QUOTED: Final = st.text(st.sampled_from('a"\\;,= 1'), max_size=6)
BLANKS: Final = st.text(st.sampled_from(" \t"), max_size=3)


@given(
    st.lists(st.tuples(NAMES, PLAIN, st.none() | QUOTED, BLANKS), max_size=5), st.sampled_from(["", ";", ";;", " ;"])
)
def test_an_element_is_read_as_it_was_written(pairs: list[tuple[str, str, str | None, str]], end: str) -> None:
    """Written pair by pair, and read back: the one `for`, and of none or several the empty text."""
    written, named = [], []
    for name, plain, quoted, blanks in pairs:
        escaped = plain if quoted is None else re.sub(r'(["\\])', r"\\\1", quoted)
        written.append(f"{blanks}{name}{blanks}={blanks}" + (escaped if quoted is None else f'"{escaped}"{blanks}'))
        named += [escaped] if name.lower() == "for" else []
    read = _forwarded_for(";".join(written) + end)
    assert read.strip(" \t") == (named[0].strip(" \t") if len(named) == 1 else "")  # as an address is read


@pytest.mark.parametrize("trust", [PROXY, Trust.of("0.0.0.0/0"), HOP, Trust.of(2), Trust.of(3)])
@pytest.mark.parametrize("header", ["X-Forwarded-For", "Forwarded"])
def test_a_cut_header_never_names_another_client(header: str, trust: Trust, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut after every character: the rest of an address may be another address, and must not be used."""
    trust = trust._replace(header=header)
    chain = ["123.123.123.123", "203.0.113.7", "10.0.0.2"]
    text = ", ".join(chain if header == "X-Forwarded-For" else [f"xfor=6.6.6.6;for={hop}" for hop in chain])
    whole = client_address("10.0.0.1", [text], trust)
    for length in range(1, len(text) + 1):
        monkeypatch.setattr("sluicegate.address._MOST_READ", length)
        assert client_address("10.0.0.1", [text], trust) in ("10.0.0.1", *chain)
    assert client_address("10.0.0.1", [text], trust) == whole


def test_a_long_element_is_cut() -> None:
    own = 'for=203.0.113.7;host="{}"'
    assert client_address("10.0.0.1", ["for=6.6.6.6", own.format("x" * 8_000)], FORWARDED) == "203.0.113.7"
    assert client_address("10.0.0.1", ["for=6.6.6.6", own.format("x" * 9_000)], FORWARDED) == "10.0.0.1"
    assert client_address("10.0.0.1", [own.format("x" * 9_000), "for=203.0.113.8"], FORWARDED) == "203.0.113.8"


def test_no_more_than_the_last_32_hops_are_read() -> None:
    everybody = Trust.of("0.0.0.0/0")
    chain = [f"10.0.0.{number}" for number in range(100)]
    assert client_address("10.0.0.1", [", ".join(chain)], everybody) == "10.0.0.68"
    assert client_address("10.0.0.1", chain, everybody) == "10.0.0.68"
    forwarded = Trust.of("0.0.0.0/0", "Forwarded")
    assert client_address("10.0.0.1", [f"for={hop}" for hop in chain], forwarded) == "10.0.0.68"
    assert client_address("10.0.0.1", chain, Trust.of(32)) == "10.0.0.68"


TRUSTS: Final = [
    NOBODY,
    PROXY,
    HOP,
    Trust.of(3),
    Trust.of(["unix", "::/0"]),
    FORWARDED,
    Trust.of("0.0.0.0/0", "forwarded"),
]
PIECES: Final = [
    *'[]:%.,;="\\ \t',
    "for",
    "for=",
    "10.0.0.1",
    "203.0.113.7",
    "::1",
    "2001:db8::",
    "unknown",
    "65536",
    "0x",
]
TEXTS = st.one_of(
    st.text(st.characters(codec=None), max_size=80), st.lists(st.sampled_from(PIECES), max_size=12).map("".join)
)


@given(st.one_of(st.none(), TEXTS), st.lists(TEXTS, max_size=4), st.sampled_from(TRUSTS))
@example("10.0.0.1", ['"' * 99_999, ',"' * 50_000], FORWARDED)
@example("10.0.0.1", ["," * 100_000], HOP)
@example("x" * 1_000_000, [], NOBODY)
def test_any_peer_and_any_headers_give_a_short_budget(peer: str | None, lines: list[str], trust: Trust) -> None:
    budget = client_address(peer, lines, trust)
    assert 0 < len(budget) <= 70
    assert client_address(peer, ["203.0.113.7", *lines], NOBODY) == client_address(peer, [], NOBODY)


@pytest.mark.slow
@given(st.lists(TEXTS, max_size=4), st.sampled_from(["203.0.113.7", "2001:db8::7"]))
def test_nothing_that_the_client_sends_hides_the_proxys_element(lines: list[str], client: str) -> None:
    budget = client_address(client, [], NOBODY)
    assert client_address("10.0.0.1", [*lines, client], HOP) == budget
    assert client_address("10.0.0.1", [*lines, client], PROXY) == budget
    assert (
        client_address("10.0.0.1", [*lines, f'for="[{client}]"' if ":" in client else f"for={client}"], FORWARDED)
        == budget
    )


@given(st.ip_addresses())
def test_a_group_depends_on_bits_and_not_on_spelling(address: Any) -> None:
    budget = client_address(str(address), [], NOBODY)
    assert client_address(address.exploded.upper(), [], NOBODY) == budget
    assert client_address(f"[{address}]:443" if address.version == 6 else f"{address}:443", [], NOBODY) == budget


@pytest.mark.parametrize(
    ("peer", "lines", "network"),
    [
        ("198.51.100.9", [], "198.51.100.0"),
        ("198.51.100.255", ["6.6.6.6"], "198.51.100.0"),
        ("::ffff:198.51.100.9", [], "198.51.100.0"),
        ("64:ff9b::198.51.100.9", [], "198.51.100.0"),
        ("2001:db8:1:2::3", [], "2001:db8:1::"),
        ("2001:db8:1:ffff:ffff:ffff:ffff:ffff", [], "2001:db8:1::"),
        ("10.0.0.1", ["203.0.113.7"], "203.0.113.0"),
        ("10.0.0.1", ["6.6.6.6, 203.0.113.7"], "203.0.113.0"),
        ("10.0.0.1", ["2001:db8:1:2::3"], "2001:db8:1::"),
        ("10.0.0.1", ["nonsense"], "10.0.0.0"),
        (None, [], NO_PEER),
        ("a socket", [], "peer a socket"),
    ],
)
def test_the_network_of_a_client(peer: str | None, lines: list[str], network: str) -> None:
    assert client_network(peer, lines, Trust.of("10.0.0.0/8")) == network


def test_a_network_is_at_least_as_wide_as_an_identity() -> None:
    assert client_network("2001:db8:1:2::3", [], Trust(), prefix=32) == "2001:db8::"
    assert client_network("2001:db8:1:2::3", [], Trust(), prefix=128) == "2001:db8:1::"
