"""Known formats: those that are recognised, and how, and those that a user names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final
from zoneinfo import ZoneInfo

from sluicegate.address import parse_address
from sluicegate.errors import LogError, needs
from sluicegate.replay.formats import EACH, KINDS, Csv, Format, Json, Layout, Part, cells_of, paths_of
from sluicegate.replay.lines import read
from sluicegate.replay.syntaxes import apache, gunicorn, haproxy, log_formats, nginx
from sluicegate.replay.traffic import FIELD

with needs("replay"):
    import polars as pl

_COMMON: Final = '$remote_addr $logname $remote_user [$time_local] "$request" $status $body_bytes_sent'
COMMON: Final = nginx(_COMMON, name="common")
# The format `main` of the nginx package and image, and the default of ingress-nginx:
# https://kubernetes.github.io/ingress-nginx/user-guide/nginx-configuration/log-format/
_AGENT: Final = _COMMON + ' "$http_referer" "$http_user_agent"'
COMBINED: Final = nginx(_AGENT, name="combined")
AND_MORE: Final = replace(COMBINED, parts=(*COMBINED.parts, Part("", "more")))
"""The format `combined` with more fields, which are ignored. It reads lines of others too, so it comes last."""
NGINX_MAIN: Final = nginx(_AGENT + ' "$http_x_forwarded_for"', name="nginx-main")
INGRESS_NGINX: Final = nginx(
    _AGENT + " $request_length $request_time [$proxy_upstream_name] [$proxy_alternative_upstream_name] $upstream_addr"
    " $upstream_response_length $upstream_response_time $upstream_status $req_id",
    name="ingress-nginx",
)
VHOST_COMBINED: Final = apache('%v:%p %h %l %u %t "%r" %>s %O "%{Referer}i" "%{User-Agent}i"', name="vhost_combined")

# https://doc.traefik.io/traefik/observability/access-logs/; the time is the start of the request.
TRAEFIK: Final = Layout(
    "traefik",
    (
        *apache('%h %l %u %t "%r" %>s %b "%{Referer}i" "%{User-Agent}i" ').parts,
        *(Part("field:RequestCount"), ' "', Part("field:RouterName"), '" "', Part("field:ServiceURL"), '" '),
        *(Part("duration", "milliseconds"), "ms"),
    ),
)
# The examples `option httplog` and `option httpslog` of https://docs.haproxy.org/2.6/configuration.html#8.2
_HTTPLOG: Final = (
    "%ci:%cp [%tr] %ft %b/%s %TR/%Tw/%Tc/%Tr/%Ta %ST %B %CC %CS %tsc %ac/%fc/%bc/%sc/%rc %sq/%bq %hr %hs %{+Q}r"
)
HAPROXY: Final = haproxy(_HTTPLOG)
HAPROXY_HTTPS: Final = haproxy(
    _HTTPLOG
    + " %[fc_err]/%[ssl_fc_err,hex]/%[ssl_c_err]/%[ssl_c_ca_err]/%[ssl_fc_is_resumed] %[ssl_fc_sni]/%sslv/%sslc",
    name="haproxy-https",
)
# uvicorn.logging.AccessFormatter; a line has no time unless the user's `fmt` puts one before it.
_UVICORN: Final = (Part("address", "address:port"), ' - "', Part("request"), '" ', Part("status", "status"))
UVICORN: Final = Layout(
    "uvicorn",
    (Part("", "opening"), Part("end", "iso"), Part("", "words"), " ", *_UVICORN, Part("", "rest")),
    escape="",
)
UVICORN_WITHOUT_TIME: Final = Layout("uvicorn", (Part("", "words"), *_UVICORN, Part("", "rest")), escape="")

# https://docs.aws.amazon.com/elasticloadbalancing/latest/application/load-balancer-access-logs.html#access-log-entry-format
ALB: Final = Layout(
    "alb",
    (
        *nginx("$type $time_iso8601 $elb ").parts,
        Part("address", "address:port"),
        *nginx(
            " $target $request_processing_time $target_processing_time $response_processing_time $status"
            ' $target_status_code $received_bytes $bytes_sent "$request" "$http_user_agent" $ssl_cipher $ssl_protocol'
            ' $target_group_arn "$trace_id" "$host" "$chosen_cert_arn" $matched_rule_priority '
        ).parts,
        Part("time", "iso"),
        Part("", "rest"),
    ),
)

# https://docs.aws.amazon.com/AmazonCloudFront/latest/DeveloperGuide/standard-logs-reference.html, and IIS. The time is
# the end of the response in UTC.
_W3C: Final = {
    "c-ip": Part("address", "address"),
    "cs-username": Part("user"),
    "cs-method": Part("method"),
    "cs(Host)": Part("host"),
    "x-host-header": Part("host"),
    "cs-uri-stem": Part("path"),
    "cs-uri-query": Part("query"),
    "sc-status": Part("status", "status"),
    "sc-bytes": Part("bytes", "number"),
    "time-taken": Part("duration", "seconds"),
    "cs(User-Agent)": Part("agent"),
    "x-forwarded-for": Part("forwarded"),
}
_CLOUDFRONT: Final = (
    "date time x-edge-location sc-bytes c-ip cs-method cs(Host) cs-uri-stem sc-status cs(Referer) cs(User-Agent)"
    " cs-uri-query cs(Cookie) x-edge-result-type x-edge-request-id x-host-header cs-protocol cs-bytes time-taken"
    " x-forwarded-for ssl-protocol ssl-cipher x-edge-response-result-type cs-protocol-version fle-status"
    " fle-encrypted-fields c-port time-to-first-byte x-edge-detailed-result-type sc-content-type sc-content-len"
    " sc-range-start sc-range-end"
)


def w3c(names: str, *, separator: str = "\t", name: str = "cloudfront") -> Layout:
    """Return the format of lines with these fields, which a line `#Fields:` names."""
    parts: list[str | Part] = []
    fields = names.replace("date time", "date-time", 1).split()
    for each in fields:
        if each == "date-time":
            part = Part("end", "w3c")
        elif each == "time-taken" and separator == " ":  # of IIS
            part = Part("duration", "milliseconds")
        elif each == "x-host-header" and "cs(Host)" in fields:  # cs(Host) is the distribution's own name
            part = Part("host")
        else:
            part = _W3C.get(each, Part(FIELD + each))
        if each == "cs(Host)" and "x-host-header" in fields:
            part = Part(FIELD + each)
        parts += [part, separator]
    return Layout(name, tuple(parts[:-1]), escape="percent" if separator == "\t" else "plus", ignored="#")


CLOUDFRONT: Final = w3c(_CLOUDFRONT)

# https://caddyserver.com/docs/caddyfile/directives/log; `ts` is the time of logging.
CADDY: Final = Json(
    "caddy",
    places={
        "end": [("ts",)],
        "address": [("request", "remote_ip"), ("request", "remote_addr")],
        "user": [("user_id",)],
        "method": [("request", "method")],
        "host": [("request", "host")],
        "target": [("request", "uri")],
        "status": [("status",)],
        "bytes": [("size",)],
        "duration": [("duration",)],
        "agent": [("request", "headers", "User-Agent", EACH)],
        "forwarded": [("request", "headers", "X-Forwarded-For", EACH)],
    },
    header=lambda name: [("request", "headers", name.title(), EACH)],
    marker=("request", "uri"),
)
# https://doc.traefik.io/traefik/observability/access-logs/
TRAEFIK_JSON: Final = Json(
    "traefik-json",
    kinds={**KINDS, "time": "iso", "duration": "nanoseconds"},
    places={
        "time": [("StartUTC",), ("StartLocal",)],
        "address": [("ClientHost",)],
        "user": [("ClientUsername",)],
        "method": [("RequestMethod",)],
        "host": [("RequestHost",)],
        "target": [("RequestPath",)],
        "status": [("DownstreamStatus",)],
        "bytes": [("DownstreamContentSize",)],
        "duration": [("Duration",)],
        "agent": [("request_User-Agent",)],
        "forwarded": [("request_X-Forwarded-For",)],
    },
    header=lambda name: [(f"request_{name.title()}",)],
    marker=("ClientHost",),
)
# https://developers.cloudflare.com/logs/logpush/logpush-job/datasets/zone/http_requests/
CLOUDFLARE: Final = Json(
    "cloudflare",
    places={
        "time": [("EdgeStartTimestamp",)],
        "address": [("ClientIP",)],
        "method": [("ClientRequestMethod",)],
        "host": [("ClientRequestHost",)],
        "target": [("ClientRequestURI",), ("ClientRequestPath",)],
        "status": [("EdgeResponseStatus",)],
        "bytes": [("EdgeResponseBytes",)],
        "agent": [("ClientRequestUserAgent",)],
        "forwarded": [("RequestHeaders", "x-forwarded-for")],
    },
    header=lambda name: [("RequestHeaders", name)],
    marker=("EdgeStartTimestamp",),
)
# https://cloud.google.com/logging/docs/reference/v2/rest/v2/LogEntry#HttpRequest
GCP: Final = Json(
    "gcp",
    kinds={**KINDS, "time": "iso"},
    places={
        "time": [("timestamp",)],
        "address": [("httpRequest", "remoteIp")],
        "method": [("httpRequest", "requestMethod")],
        "target": [("httpRequest", "requestUrl")],
        "status": [("httpRequest", "status")],
        "bytes": [("httpRequest", "responseSize")],
        "duration": [("httpRequest", "latency")],
        "agent": [("httpRequest", "userAgent")],
    },
    marker=("httpRequest", "requestMethod"),
)
# DecisionEvent.asdict(), to which the application has added a time. What the first rule counted is the identity.
EVENTS: Final = Json(
    "sluicegate",
    places={
        "time": [("time",), ("timestamp",), ("ts",)],
        "address": [("rules", "0", "identity")],
        "method": [("method",)],
        "path": [("endpoint",)],
    },
    marker=("rules", "0", "result"),
)

KNOWN: Final[tuple[Format, ...]] = (
    TRAEFIK, INGRESS_NGINX, NGINX_MAIN, VHOST_COMBINED, COMBINED, COMMON, HAPROXY_HTTPS, HAPROXY, ALB, CLOUDFRONT,
    UVICORN, CADDY, TRAEFIK_JSON, CLOUDFLARE, GCP, EVENTS,
)  # fmt: skip
"""Formats that are recognised, the more special ones first."""

NAMES: Final = {each.name: each for each in KNOWN} | dict.fromkeys(
    ("combined", "gunicorn", "nginx", "apache"), AND_MORE
)

# For each column the names that are usual in JSON and CSV; those of the Elastic Common Schema are among them.
_USUAL: Final = {
    "time": "time timestamp @timestamp ts datetime date start_time",
    "address": "address remote_addr remote_ip client_ip clientip client.ip ip client source.ip",
    "user": "user remote_user user_id username user.name",
    "method": "method request_method http_method verb http.request.method",
    "host": "host http_host domain server_name url.domain",
    "target": "target request_uri uri url path url.original",
    "query": "query query_string args url.query",
    "request": "request",
    "status": "status status_code http.response.status_code code",
    "bytes": "bytes body_bytes_sent bytes_sent size http.response.body.bytes",
    "agent": "agent user_agent http_user_agent userAgent user_agent.original",
    "forwarded": "forwarded x_forwarded_for http_x_forwarded_for xff",
}
_OTHERS: Final = ("end", "duration", "path")  # have no usual name
_DURATION: Final = re.compile("(duration)_?(seconds|s|milliseconds|ms|microseconds|us|nanoseconds|ns)")
_UNITS: Final = {"s": "seconds", "ms": "milliseconds", "us": "microseconds", "ns": "nanoseconds"}


def _columns(fields: Mapping[str, str]) -> tuple[dict[str, list[str]], dict[str, str]]:
    """Return the names for each column, and the kinds of columns. What the user names comes before usual names."""
    names = {column: usual.split() for column, usual in _USUAL.items()}
    kinds = dict(KINDS)
    for given, name in fields.items():
        column = given
        if unit := _DURATION.fullmatch(given):
            column = "duration"
            kinds[column] = _UNITS.get(unit[2], unit[2])
        if column not in names and column not in _OTHERS and not column.startswith(FIELD):
            column = FIELD + column
        names[column] = [name]
    for made, part in (("time", "end"), ("target", "path")):
        if part in fields and made not in fields:
            del names[made]
    return names, kinds


def json_lines(fields: Mapping[str, str]) -> Json:
    """Return the format of JSON lines with these names of fields, and otherwise usual ones."""
    names, kinds = _columns(fields)
    places = {column: [path for name in each for path in paths_of(name)] for column, each in names.items()}
    return Json("json", kinds=kinds, places=places, header=lambda name: [("headers", name), ("headers", name.title())])


def csv_lines(first: str, fields: Mapping[str, str]) -> Csv | None:
    """Return the format of CSV below this first line; None if the line names no time."""
    delimiter = max(",;\t|", key=first.count)
    cells = cells_of(first, delimiter)
    names, kinds = _columns(fields)
    places = {
        column: [(here,)] for column, each in names.items() if (here := next((n for n in each if n in cells), ""))
    }
    if not {"time", "end"} & set(places):
        return None
    # Every file of a log begins with the names.
    return Csv("csv", places, kinds, ignored=first, delimiter=delimiter, names=tuple(cells))


SAMPLE: Final = 1000
"""Lines by which a format is recognised."""
_NAMES: Final = "#Fields:"


def recognised(
    rows: pl.DataFrame, fields: Mapping[str, str], *, among: Sequence[Format], path: str, zone: ZoneInfo
) -> Format | None:
    """Return the format that reads most of the lines, among these if any are given; None if none reads any. Of formats
    that read equally many, the first is the most special. Raises LogError for lines that have no time.
    """
    sample = rows.head(SAMPLE)
    found, most = None, 0
    for each in among or _candidates(sample["line"], fields):
        if (number := len(read(each, sample, (), zone=zone).frame)) > most:
            found, most = each, number
        if most == len(sample):
            break
    if found is None and not among and len(read(AND_MORE, sample, (), zone=zone).frame):
        return named(AND_MORE, fields)
    if found is None and UVICORN_WITHOUT_TIME.texts(sample["line"], ["status"])["status"].is_not_null().any():
        problem = "the lines of uvicorn have no time"
        expected = 'log with a time: set the formatter of uvicorn.access to "%(asctime)s %(levelprefix)s …"'
        raise LogError("log", path, problem=problem, expected=expected)
    return found


def _candidates(lines: pl.Series, fields: Mapping[str, str]) -> Iterator[Format]:
    names = lines.filter(lines.str.starts_with(_NAMES))
    if len(names):
        is_tabbed = lines.filter(~lines.str.starts_with("#")).str.contains("\t", literal=True).any()
        name, separator = ("cloudfront", "\t") if is_tabbed else ("w3c", " ")
        yield w3c(names[0].removeprefix(_NAMES), separator=separator, name=name)
    known = [each for each in KNOWN if each is not NGINX_MAIN or _forwards(lines)]
    if not fields:
        yield from known
    yield json_lines(fields)
    if (found := csv_lines(lines[0], fields)) is not None:
        yield found
    if fields:
        yield from [named(each, fields) for each in known]


def _forwards(lines: pl.Series) -> bool:
    """False if most texts in the column that "nginx-main" adds are no addresses: it is a session or an id, not the
    header of proxies. The last address is the one that a proxy wrote, whatever a client sent.
    """
    texts = [text for text in NGINX_MAIN.texts(lines, ["forwarded"])["forwarded"].drop_nulls() if text != "-"]
    found = [text for text in texts if parse_address(text.rpartition(",")[2])]
    return 2 * len(found) >= len(texts)


def given(text: str, fields: Mapping[str, str]) -> Sequence[Format]:
    """Return the format that a name or a format string means, or the formats of an nginx.conf; nothing if it must be
    recognised.
    """
    if text in ("auto", "csv"):
        return ()
    if text == "json":
        return (json_lines(fields),)
    if text in NAMES:
        return (named(NAMES[text], fields),)
    compiled = _compiled(text)
    meant = _of_nginx(text) if compiled is None else [compiled]
    found = [each.named(fields) for each in meant if each.kind("time") or each.kind("end")]
    if not found:
        expected = "add the time to the log format of the server"
        raise LogError("format", text, problem="it has no time", expected=expected)
    return found


def _of_nginx(text: str) -> list[Layout]:
    """Return the formats of an nginx.conf, or the one that is named: nginx.conf, nginx.conf:main."""
    for path, _, name in ((text, "", ""), text.rpartition(":")):
        try:
            found = log_formats(Path(path).read_text("utf-8", "replace"))
        except (OSError, ValueError):  # no such file, or no name of one
            continue
        if not found or name not in ("", *found):
            expected = (
                f"give one of {', '.join(found)}" if found else "give the output of nginx -T, which has all files"
            )
            raise LogError("format", text, problem=f"it has no log_format {name}".rstrip(), expected=expected)
        return [found[name]] if name else [*found.values()]
    expected = f"give auto, json, csv, {', '.join(NAMES)}, the server's format string, or the path of its nginx.conf"
    raise LogError("format", text, problem="no such format", expected=expected)


def named(form: Format, fields: Mapping[str, str]) -> Format:
    """Return a known format with columns as the user names them."""
    return form.named(fields) if isinstance(form, Layout) else form


def _compiled(text: str) -> Layout | None:
    if "%(" in text:
        return gunicorn(text)
    if "%ci" in text or "%ST" in text or "%HM" in text:
        return haproxy(text)
    if "%" in text:
        return apache(text)
    return nginx(text) if "$" in text else None
