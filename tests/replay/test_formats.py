"""Formats: a line of each, as its vendor documents it, and what is read from it."""

from __future__ import annotations

import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import quote
from zoneinfo import ZoneInfo

import orjson
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate import Limiter
from sluicegate.errors import LogError
from sluicegate.observe.events import DecisionEvent
from sluicegate.replay.log import Log

WANTED: Final = (
    "address",
    "user",
    "method",
    "host",
    "path",
    "query",
    "status",
    "bytes",
    "duration",
    "agent",
    "forwarded",
)


def micro(text: str) -> int:
    moment = datetime.fromisoformat(text)
    since = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)) - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86400 + since.seconds) * 1_000_000 + since.microseconds


class Sample(NamedTuple):
    name: str  # as it is recognised
    text: str
    time: str
    values: dict[str, Any]
    given: str = "auto"
    fields: dict[str, str] = {}  # noqa: RUF012


ALB: Final = (
    "https 2018-07-02T22:23:00.186641Z app/my-loadbalancer/50dc6c495c0c9188 192.168.131.39:2817 10.0.0.1:80 0.086 0.048"
    ' 0.037 200 200 0 57 "GET https://www.example.com:443/a%20b?x=1 HTTP/1.1" "curl/7.46.0"'
    " ECDHE-RSA-AES128-GCM-SHA256 TLSv1.2"
    " arn:aws:elasticloadbalancing:us-east-2:123456789012:targetgroup/my-targets/73e2d6bc24d8a067"
    ' "Root=1-58337281-1d84f3d73c47ec4e58577259" "www.example.com" "arn:aws:acm:us-east-2:1:certificate/1" 1'
    ' 2018-07-02T22:22:48.364000Z "authenticate,forward" "-" "-" "10.0.0.1:80" "200" "-" "-" TID_1'
)
NAMES: Final = (
    "#Fields: date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer)"
    " cs(User-Agent) cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes"
    " time-taken x-forwarded-for ssl-protocol ssl-cipher x-edge-response-result-type cs-protocol-version fle-status"
    " fle-encrypted-fields c-port time-to-first-byte x-edge-detailed-result-type sc-content-type sc-content-len"
    " sc-range-start sc-range-end"
)
CLOUDFRONT: Final = (
    f"#Version: 1.0\n{NAMES}\n"
    "2019-12-04\t21:02:31\tLAX1\t392\t192.0.2.100\tGET\td111111abcdef8.cloudfront.net\t/index.html\t200\t-"
    "\tMozilla/5.0%20(Windows)\tx=1\t-\tHit\tSOX4xwn4XV6Q4rgb7XiVGOHms==\td.example\thttps\t23"
    "\t0.500\t198.51.100.1\tTLSv1.2\tECDHE\tHit\tHTTP/2.0\t-\t-\t11040\t0.001\tHit\ttext/html\t78\t-\t-"
)
IIS: Final = (
    "#Fields: date time s-ip cs-method cs-uri-stem cs-uri-query cs-username c-ip cs(User-Agent) sc-status time-taken\n"
    "2026-03-01 12:00:00 10.0.0.1 GET /a x=1 alice 192.0.2.1 Mozilla/5.0+(Windows) 200 250"
)
GCP: Final = (
    '{"httpRequest":{"latency":"0.250s","remoteIp":"192.0.2.1","requestMethod":"GET","requestSize":"1",'
    '"requestUrl":"https://example.com/a%20b?x=1","responseSize":"57","status":200,"userAgent":"curl/8"},'
    '"insertId":"1","severity":"INFO","timestamp":"2026-03-01T12:00:00.123456Z"}'
)
TRAEFIK_JSON: Final = (
    '{"ClientAddr":"192.0.2.1:5000","ClientHost":"192.0.2.1","ClientPort":"5000","ClientUsername":"-",'
    '"DownstreamContentSize":57,"DownstreamStatus":200,"Duration":2500000,"RequestHost":"example.com",'
    '"RequestMethod":"GET","RequestPath":"/a%20b?x=1","StartUTC":"2026-03-01T12:00:00.123456789Z",'
    '"request_User-Agent":"curl/8","request_X-Forwarded-For":"198.51.100.1","level":"info","msg":"","time":"x"}'
)
NOON: Final = 1772366400
EVENT: Final = DecisionEvent(Limiter().hit("5/minute", "alice"), endpoint="/items/{id}", method="GET")
SAMPLES: Final = [
    Sample(
        "nginx-main",
        '10.0.0.2 - alice [01/Mar/2026:12:00:00 +0000] "GET /a?x=1 HTTP/1.1" 200 57 "-" "curl/8" "192.0.2.1, 10.0.0.9"',
        "2026-03-01T12:00:00",
        {"address": "10.0.0.2", "user": "alice", "path": "/a", "agent": "curl/8", "forwarded": "192.0.2.1, 10.0.0.9"},
    ),
    # The second server answered: the first was tried for a second.
    Sample(
        "ingress-nginx",
        '192.0.2.1 - - [01/Mar/2026:12:00:01 +0000] "GET /a HTTP/2.0" 200 57 "-" "curl/8" 521 1.250'
        " [default-shop-80] [] 10.1.2.3:8000, 10.1.2.4:8000 0, 57 1.000, 0.250 502, 200 3c9ac0ffee",
        "2026-03-01T12:00:00",
        {"address": "192.0.2.1", "user": None, "path": "/a", "duration": 1_250_000, "agent": "curl/8",
         "field:proxy_upstream_name": "default-shop-80"},
    ),
    Sample(
        "vhost_combined",
        'example.com:443 192.0.2.1 - alice [01/Mar/2026:13:00:00 +0100] "GET /a HTTP/1.1" 200 57 "-" "say \\"hi\\""',
        "2026-03-01T12:00:00",
        {"host": "example.com", "address": "192.0.2.1", "user": "alice", "path": "/a", "agent": 'say "hi"'},
    ),
    Sample(
        "traefik",
        '192.0.2.1 - - [01/Mar/2026:12:00:00 +0000] "GET /a?x=1 HTTP/1.1" 200 57 "-" "curl/8" 12 "web@docker"'
        ' "http://10.0.0.1:80" 15ms',
        "2026-03-01T12:00:00",
        {"address": "192.0.2.1", "path": "/a", "query": "x=1", "bytes": 57, "duration": 15_000, "agent": "curl/8"},
    ),
    Sample(
        "traefik-json",
        TRAEFIK_JSON,
        "2026-03-01T12:00:00.123456",
        {"address": "192.0.2.1", "path": "/a b", "duration": 2500, "user": None, "forwarded": "198.51.100.1"},
    ),
    # https://docs.haproxy.org/2.6/configuration.html#8.2.3
    Sample(
        "haproxy",
        "Feb  6 12:14:14 localhost haproxy[14389]: 10.0.1.2:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1"
        ' 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /index.html?a HTTP/1.1"',
        "2009-02-06T12:14:14.655",
        {"address": "10.0.1.2", "path": "/index.html", "query": "a", "status": 200, "bytes": 2750, "duration": 109_000},
    ),
    Sample(
        "haproxy",
        "192.0.2.1:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ----"
        ' 1/1/1/1/0 0/0 {1wt.eu|198.51.100.1, 10.0.0.9|} {nginx#7C1} "GET / HTTP/1.1"',
        "2009-02-06T12:14:14.655",
        {"address": "192.0.2.1", "path": "/", "forwarded": "198.51.100.1, 10.0.0.9", "field:server": "nginx|1",
         "field:header:x-api-key": "1wt.eu", "field:hr.2": None, "field:hr.3": None},
        fields={"forwarded": "hr.1", "server": "hs.0", "header:X-Api-Key": "hr.0"},
    ),
    Sample(
        "haproxy-https",
        "haproxy[1]: ::1:33317 [06/Feb/2009:12:14:14.655] https-in~ static/srv1 10/0/30/69/109 200 2750 - - ----"
        ' 1/1/1/1/0 0/0 "GET / HTTP/1.1" 0/0000000000000000/0/0/0 1wt.eu/TLSv1.3/TLS_AES_256_GCM_SHA384',
        "2009-02-06T12:14:14.655",
        {"address": "::1", "method": "GET", "path": "/"},
    ),
    Sample(
        "alb",
        ALB,
        "2018-07-02T22:22:48.364",
        {"address": "192.168.131.39", "host": "www.example.com", "path": "/a b", "query": "x=1", "bytes": 57},
    ),
    Sample(
        "cloudfront",
        CLOUDFRONT,
        "2019-12-04T21:02:31",
        {"address": "192.0.2.100", "host": "d.example", "path": "/index.html", "query": "x=1", "duration": 500_000,
         "agent": "Mozilla/5.0 (Windows)", "forwarded": "198.51.100.1"},
    ),
    Sample(
        "w3c",
        IIS,
        "2026-03-01T12:00:00",
        {"address": "192.0.2.1", "user": "alice", "path": "/a", "query": "x=1", "agent": "Mozilla/5.0 (Windows)"},
    ),
    # https://cloud.ibm.com/docs/cis?topic=cis-logpull, and RFC 3339, which Logpush writes by default
    Sample(
        "cloudflare",
        '{"ClientIP":"192.0.2.1","ClientRequestHost":"example.com","ClientRequestMethod":"GET","ClientRequestURI":'
        '"/var/www?x=1","EdgeEndTimestamp":1545155129703000000,"EdgeResponseBytes":1935,"EdgeResponseStatus":403,'
        '"EdgeStartTimestamp":1545155129696000000,"RayID":"48b371889c489b2c",'
        '"RequestHeaders":{"x-forwarded-for":"198.51.100.1"}}',
        "2018-12-18T17:45:29.696",
        {"address": "192.0.2.1", "forwarded": "198.51.100.1", "path": "/var/www", "query": "x=1", "status": 403},
    ),
    Sample(
        "gcp",
        GCP,
        "2026-03-01T12:00:00.123456",
        {"address": "192.0.2.1", "host": "example.com", "path": "/a b", "duration": 250_000, "status": 200},
    ),
    Sample(
        "uvicorn",
        '2026-03-01 12:00:00,250 INFO:     192.0.2.1:5000 - "GET /a%20b?x=1 HTTP/1.1" 200 OK',
        "2026-03-01T12:00:00.250",
        {"address": "192.0.2.1", "path": "/a b", "query": "x=1", "status": 200},
    ),
    Sample(
        "sluicegate",
        orjson.dumps({"time": NOON, **EVENT.asdict()}).decode(),
        "2026-03-01T12:00:00",
        {"address": EVENT.rules[0].identity, "method": "GET", "path": "/items/{id}"},
    ),
    Sample(
        "json",
        '{"timestamp":"2026-03-01T12:00:00Z","client_ip":"192.0.2.1:5000","uri":"/a"}',
        "2026-03-01T12:00:00",
        {"address": "192.0.2.1", "path": "/a"},
    ),
    Sample(
        "json",
        '{"@timestamp":"2026-03-01T12:00:00.5+01:00","source":{"ip":"192.0.2.1"},"url":{"original":"/a?x=1"},'
        '"http":{"request":{"method":"get"},"response":{"status_code":200}}}',
        "2026-03-01T11:00:00.5",
        {"address": "192.0.2.1", "method": "GET", "path": "/a", "query": "x=1", "status": 200},
    ),
    Sample(
        "csv",
        "time,ip,ip\n1772366400,192.0.2.1,192.0.2.2\n",  # of equal names the first
        "2026-03-01T12:00:00",
        {"address": "192.0.2.1"},
        fields={"time": "time", "address": "ip"},
    ),
    Sample(
        "csv",
        'when,who,"what, where",ms\n1772366400123,192.0.2.1,"/a ""b""?x=1",12\n',
        "2026-03-01T12:00:00.123",
        {"address": "192.0.2.1", "path": '/a "b"', "query": "x=1", "duration": 12_000},
        fields={"time": "when", "address": "who", "target": "what, where", "duration_ms": "ms"},
    ),
    Sample(
        "nginx",
        "192.0.2.1|two words|1772366400.750|GET /a%20b?x=1 HTTP/2.0|429|0.250|198.51.100.1, 203.0.113.7|\\x22curl\\x22",
        "2026-03-01T12:00:00.500",
        {"user": "two words", "path": "/a b", "status": 429, "duration": 250_000, "agent": '"curl"',
         "forwarded": "198.51.100.1, 203.0.113.7"},
        "$remote_addr|$remote_user|$msec|$request|$status|$request_time|$http_x_forwarded_for|$http_user_agent",
    ),
    Sample(
        "nginx",
        r'{"time":"2026-03-01T13:00:00+01:00","ip":"2001:db8::1","r":"GET /a?\"\u00e9 HTTP/1.1","h":"example.com"}',
        "2026-03-01T12:00:00",
        {"address": "2001:db8::1", "query": '"é', "host": "example.com"},
        '{"time":"$time_iso8601","ip":"$remote_addr","r":"$request","h":"$host"}',
    ),
    Sample(
        "apache",
        "2026-03-01 12:00:00 192.0.2.1 POST /é ?x=1 200 1250 key",
        "2026-03-01T12:00:00",
        {"method": "POST", "path": "/é", "query": "x=1", "duration": 1250, "field:header:x-api-key": "key"},
        "%{%Y-%m-%d %H:%M:%S}t %a %m %U %q %>s %D %{X-Api-Key}i",
    ),
    Sample(
        "gunicorn",
        '192.0.2.1 [01/Mar/2026:12:00:01 +0000] "GET /a?x=1 HTTP/1.1" 200 2.750000 <12>',
        "2026-03-01T11:59:59",
        {"path": "/a", "query": "x=1", "duration": 2_750_000},
        '%(h)s %(t)s "%(r)s" %(s)s %(L)s %(p)s',
    ),
]  # fmt: skip


def rows_of(path: Path, sample: Sample) -> tuple[list[dict[str, Any]], Log]:
    log = Log([path], format=sample.given, fields=sample.fields)
    return pl.concat(list(log.frames((*WANTED, *sample.values)))).to_dicts(), log


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda sample: sample.name)
def test_a_line_of_the_format_is_read(sample: Sample, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text(sample.text + "\n")
    (row,), log = rows_of(path, sample)
    assert log.read.formats == ((str(path), sample.name),)
    assert log.read.unreadable.lines == 0
    assert (row["time"], {name: row[name] for name in sample.values}) == (micro(sample.time), sample.values)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_a_format_is_recognised_whatever_the_files_before_have(seed: int, tmp_path: Path) -> None:
    """Each file begins with the format of the one before, which must not win from a more special one."""
    samples = [each for each in SAMPLES if each.given == "auto" and not each.fields]
    samples = random.Random(seed).choices(samples, k=3 * len(samples))
    paths = [tmp_path / str(number) for number in range(len(samples))]
    for path, sample in zip(paths, samples, strict=True):
        path.write_text(sample.text + "\n")
    log = Log(paths, window=86_400.0)
    assert sum(map(len, log.frames(WANTED))) == len(samples)
    assert [found.format for found in log.read.formats] == [each.name for each in samples]


REQUESTS: Final = [
    ("GET /a%20b?x=%20 HTTP/1.1", ("GET", "/a b", "x=%20", None)),
    ("get http://example.com HTTP/1.1", ("GET", "/", None, "example.com")),
    ("GET http://alice@example.com:80/a?x HTTP/1.1", ("GET", "/a", "x", "example.com:80")),
    ("GET /", ("GET", "/", None, None)),
    ("GET /%C3%A9%FF HTTP/1.1", ("GET", "/é\ufffd", None, None)),
    ("GET /\\xC3\\xA9\\x22\\x5C HTTP/1.1", ("GET", '/é"\\', None, None)),
    ('GET /\\"\\\\x41\\n\\q\\xZZ HTTP/1.1', ("GET", '/"\\x41\n\\q\\xZZ', None, None)),
    ("OPTIONS * HTTP/1.1", ("OPTIONS", "*", None, None)),
    ("\\x16\\x03\\x01", (None, None, None, None)),
    ("GET /a b HTTP/1.1", (None, None, None, None)),
    ("", (None, None, None, None)),
    ("-", (None, None, None, None)),
    ("GET /a? HTTP/1.1", ("GET", "/a", None, None)),
    ("GET /a?- HTTP/1.1", ("GET", "/a", "-", None)),
]


@pytest.mark.parametrize(("request_line", "expected"), REQUESTS)
def test_a_request_line_is_read(request_line: str, expected: tuple[Any, ...], tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text(f'192.0.2.1 - - [01/Mar/2026:12:00:00 +0000] "{request_line}" 400 -\n')
    (frame,) = Log([path]).frames(("method", "path", "query", "host", "bytes"))
    assert frame.row(0)[1:] == (*expected, None)


@pytest.mark.parametrize(
    ("form", "text", "query"),
    [
        ("$args", "-", None),
        ("$args", "a", "a"),
        ("$args", "a?-", "a?-"),
        ("%q", "-", None),
        ("%q", "", None),
        ("%q", "?-", "-"),
        ("%q", "?x=1", "x=1"),
    ],
)
def test_a_dash_is_no_query_only_where_the_server_writes_it_for_none(
    form: str, text: str, query: str | None, tmp_path: Path
) -> None:
    path = tmp_path / "access.log"
    path.write_text(f'192.0.2.1 [01/Mar/2026:12:00:00 +0000] "{text}" 200\n')
    whole = f'$remote_addr [$time_local] "{form}" $status' if "$" in form else f'%h %t "{form}" %s'
    (frame,) = Log([path], format=whole).frames(("query",))
    assert frame["query"].to_list() == [query]


TIMES: Final = [
    ("2026-03-01T12:00:00Z", "2026-03-01T12:00:00"),
    ("2026-03-01 12:00:00,5", "2026-03-01T12:00:00.5"),
    ("2026-03-01T12:00:00.123456789+05:30", "2026-03-01T06:30:00.123456"),
    ("2026-03-01T12:00:00-0800", "2026-03-01T20:00:00"),
    ("2026-03-01 12:00:00 UTC", "2026-03-01T12:00:00"),
    (1772366400, "2026-03-01T12:00:00"),
    (1772366400.25, "2026-03-01T12:00:00.25"),
    ("1772366400.25", "2026-03-01T12:00:00.25"),
    (1772366400250, "2026-03-01T12:00:00.25"),
    (1772366400250001, "2026-03-01T12:00:00.250001"),
    ("01/Mar/2026:12:00:00 -0100", "2026-03-01T13:00:00"),
]


@pytest.mark.parametrize(("text", "expected"), TIMES)
def test_a_time_is_read(text: Any, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_bytes(orjson.dumps({"ts": text}))
    (frame,) = Log([path]).frames(())
    assert frame["time"].to_list() == [micro(expected)]


def test_a_time_without_a_zone_is_in_the_zone_that_is_given(tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text('{"ts":"2026-07-01 12:00:00"}\n{"ts":"2026-01-01 12:00:00"}\n')
    found = pl.concat(list(Log([path], zone=ZoneInfo("Europe/Berlin")).frames(())))
    assert found["time"].to_list() == [micro("2026-01-01T11:00:00"), micro("2026-07-01T10:00:00")]


@pytest.mark.parametrize(
    ("text", "given", "message"),
    [
        ('INFO:     127.0.0.1:5000 - "GET / HTTP/1.1" 200 OK', "auto", "no time"),
        ("what is this", "auto", "no known format fits"),
        ("", "combinde", "no such format"),
        ("", "$remote_addr $request", "it has no time"),
    ],
)
def test_what_cannot_be_read_is_an_error(text: str, given: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text(text)
    with pytest.raises(LogError, match=message):
        list(Log([path], format=given).frames(()))


HEAD: Final = '192.0.2.1 - alice [01/Mar/2026:12:00:00 +0000] "GET /a HTTP/1.1" 200 57 "-" "curl/8"'
CONF: Final = r"""
# a log_format of a 'comment
http {
    log_format main '$remote_addr - $remote_user [$time_local] "$request" '
                    '$status $body_bytes_sent "$http_referer" '  # it's in several pieces
                    "\"$http_user_agent\" $request_time ${upstream_cache_status}";
    log_format js escape=json '{"t":"$time_iso8601","a":"$remote_addr","r":"$request",'
                              '"s":$status}';
    log_format bare escape=none $remote_addr|$msec|$uri;
    log_format timeless $remote_addr;
    server { location ~ "^/a{2}" { return 200; } access_log /var/log/access.log main; }
}
"""
CONF_LINES: Final = [
    ("", f"{HEAD} 0.250 MISS", "main", {"path": "/a", "duration": 250_000, "field:upstream_cache_status": "MISS"}),
    (":main", f"{HEAD} 0.250 MISS", "main", {"agent": "curl/8"}),
    ("", '{"t":"2026-03-01T12:00:00Z","a":"192.0.2.1","r":"GET /\\"\u00e9 HTTP/1.1","s":200}', "js", {"path": '/"é'}),
    ("", "192.0.2.1|1772366400.5|/a\\x41", "bare", {"path": "/a\\x41"}),
]


@pytest.mark.parametrize(("name", "text", "found", "values"), CONF_LINES)
def test_the_formats_of_an_nginx_conf_are_read(
    name: str, text: str, found: str, values: dict[str, Any], tmp_path: Path
) -> None:
    conf, path = tmp_path / "nginx.conf", tmp_path / "access.log"
    conf.write_text(CONF)
    path.write_text(text + "\n")
    (row,), log = rows_of(path, Sample(found, text, "", values, f"{conf}{name}"))
    assert log.read.formats == ((str(path), found),)
    assert {column: row[column] for column in values} == values


@pytest.mark.parametrize("given", ["auto", "combined", "nginx"])
@pytest.mark.parametrize("more", [" 0.250", ' "-" 0.250 MISS "', ' rt=0.250 uct="-" x'])
def test_combined_with_more_fields_is_read(given: str, more: str, tmp_path: Path) -> None:
    path = tmp_path / "access.log"
    path.write_text((HEAD + more + "\n") * 2)
    log = Log([path], format=given)
    frames = pl.concat(list(log.frames(("user", "path", "agent"))))
    assert frames.rows() == [(NOON * 1_000_000, "alice", "/a", "curl/8")] * 2
    assert log.read.formats == ((str(path), "combined"),)


# The texts of a quoted column after combined, and the format that is recognised by them.
ADDED: Final = {
    "a header of proxies": (("198.51.100.1", "-"), "nginx-main"),
    "with ports and names": (("-", "unknown, [2001:db8::7]:4711"), "nginx-main"),
    "none yet": (("-", "-"), "nginx-main"),
    "forged by some": (("<script>", "bob, 198.51.100.1"), "nginx-main"),
    "a session": (("4f2a91c0", "-"), "combined"),
    "a UUID": (("f81d4fae-7dec-11d0-a765-00a0c91e6bf6", "-"), "combined"),
    "a time": (("0.250", "12:30:11"), "combined"),
    "a name": (("shop.example.com", "de"), "combined"),
}


@pytest.mark.parametrize("case", ADDED)
def test_an_added_column_is_the_header_of_proxies_only_if_it_has_addresses(case: str, tmp_path: Path) -> None:
    texts, found = ADDED[case]
    path = tmp_path / "access.log"
    path.write_text("".join([f'{HEAD} "{text}"\n' for text in texts]))
    log = Log([path])
    (frame,) = log.frames(("address", "forwarded"))
    assert log.read.formats == ((str(path), found),)
    forwarded = [None if text == "-" or found == "combined" else text for text in texts]
    assert frame["forwarded"].to_list() == forwarded
    assert ("forwarded" in log.read.missing) is (found == "combined")


def test_a_more_special_format_comes_first(tmp_path: Path) -> None:
    """Lines of combined, and then with the header of proxies: it is not left out as more."""
    path = tmp_path / "access.log"
    path.write_text((HEAD + "\n") * 3 + f'{HEAD} "198.51.100.1"\n')
    (frame,) = Log([path]).frames(("forwarded",))
    assert frame["forwarded"].to_list() == [None, None, None, "198.51.100.1"]


@pytest.mark.parametrize(
    ("given", "text", "says"),
    [
        ("nginx-main", f"{HEAD} 0.25", "line 2, as nginx-main, $http_x_forwarded_for does not fit: '0.25'"),
        ("auto", HEAD.replace("/Mar/2026", ""), "line 2, as common, $time_local does not fit: '01:12:00:00 +0000]"),
        ("auto", HEAD.replace("Mar", "Foo"), "line 2, as combined, $time_local does not fit: '01/Foo/2026"),
        ("combined", HEAD.replace(" 200", " 20x"), "line 2, as combined, $status does not fit: '20x 57"),
        ("combined", HEAD[:-9], "line 2, as combined, $http_user_agent is missing"),
        ("{conf}", HEAD + " x MISS", "line 2, as main, $request_time does not fit: 'x MISS'"),
        ("{conf}", HEAD, "line 2, as main, $request_time is missing"),
        ("{conf}:other", HEAD, "it has no log_format other; give one of main, js, bare, timeless"),
        ("{conf}:timeless", HEAD, "it has no time"),
        ("{log}", HEAD, "it has no log_format; give the output of nginx -T"),
        ("nowhere/nginx.conf", HEAD, "no such format"),
    ],
)
def test_an_error_names_the_line_and_the_first_field_that_does_not_fit(
    given: str, text: str, says: str, tmp_path: Path
) -> None:
    conf, path = tmp_path / "nginx.conf", tmp_path / "access.log"
    conf.write_text(CONF)
    path.write_text(f"\n{text}\n" * 2)
    with pytest.raises(LogError) as raised:
        list(Log([path], format=given.format(conf=conf, log=path), show_identities=True).frames(()))
    assert says in str(raised.value)


NAMES_OF_VARIABLES: Final = {
    "address": ("$remote_addr", "%h"),
    "user": ("$remote_user", "%u"),
    "request": ('"$request"', '"%r"'),
    "status": ("$status", "%>s"),
    "bytes": ("$body_bytes_sent", "%b"),
    "agent": ('"$http_user_agent"', '"%{User-Agent}i"'),
    "forwarded": ('"$http_x_forwarded_for"', '"%{X-Forwarded-For}i"'),
    "time": ("[$time_local]", "%t"),
}
TEXTS: Final = st.text(st.characters(codec="utf-8"), min_size=1, max_size=20).filter(lambda text: text != "-")
WORDS: Final = st.text(st.characters(codec="ascii", min_codepoint=33, max_codepoint=126), min_size=1, max_size=9)


def escaped(text: str, server: int) -> str:
    """Write a text as nginx or Apache does."""
    if server == 0:
        special = b'"\\'
        return "".join(chr(it) if 32 <= it < 127 and it not in special else f"\\x{it:02X}" for it in text.encode())
    signs = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t", "\v": "\\v", "\b": "\\b"}
    return "".join(signs.get(chr(it)) or (chr(it) if 32 <= it < 127 else f"\\x{it:02x}") for it in text.encode())


@pytest.mark.slow
@given(
    requests=st.lists(
        st.tuples(
            st.ip_addresses().map(str),
            st.none() | WORDS.filter(lambda word: not set(word) & set('-"\\[')),
            st.sampled_from(["GET", "POST", "PROPFIND"]),
            TEXTS,
            st.none() | WORDS.filter(lambda word: "#" not in word and word != "-"),  # a dash stands for no text
            st.integers(100, 999),
            st.integers(0, 2**50),
            st.none() | TEXTS,
        ),
        min_size=1,
        max_size=5,
    ),
    order=st.permutations([*NAMES_OF_VARIABLES]),
    server=st.sampled_from([0, 1]),
)
@settings(max_examples=40, deadline=None)
def test_what_a_format_string_writes_is_read_back(
    requests: list[tuple[Any, ...]], order: list[str], server: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    expected, lines = [], []
    for at, (address, user, method, path, query, status, size, agent) in enumerate(requests):
        target = "/" + quote(path) + ("" if query is None else f"?{query}")
        texts = {
            "address": address,
            "user": user or "-",
            "request": f'"{escaped(f"{method} {target} HTTP/1.1", server)}"',
            "status": str(status),
            "bytes": str(size),
            "agent": f'"{escaped(agent or "-", server)}"',
            "forwarded": '"-"',
            "time": f"[01/Mar/2026:12:00:{at:02} +0000]",
        }
        lines.append(" ".join(texts[name] for name in order))
        expected.append(((NOON + at) * 1_000_000, address, user, method, f"/{path}", query, status, size, agent, None))
    log_file = tmp_path_factory.mktemp("log") / "access.log"
    log_file.write_text("\n".join(lines) + "\n")
    form = " ".join(NAMES_OF_VARIABLES[name][server] for name in order)
    wanted = ("address", "user", "method", "path", "query", "status", "bytes", "agent", "forwarded")
    assert pl.concat(list(Log([log_file], format=form).frames(wanted))).rows() == expected
