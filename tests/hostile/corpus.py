"""Hostile requests as values: the name, what is sent, and the view that it tries to reach in spite of its rule.

A request is a start line, header lines and a body. `to_bytes` adds what every client sends and, on request, the line of
a proxy. A `raw` request is sent unchanged. None of them may have its own budget.
"""

from __future__ import annotations

from typing import Final, NamedTuple

FORWARDED_FOR: Final = b"X-Forwarded-For: "
PROXY: Final = b"<the proxy's line>"  # replaced in a raw request


class Hostile(NamedTuple):
    """One request. `wants` is the view whose rule is used up. A `free` one is a preflight: it is not charged."""

    name: str
    start: bytes = b"GET / HTTP/1.1"
    lines: tuple[bytes, ...] = ()
    body: bytes = b""
    host: bytes | None = b"shop.example"
    raw: bytes = b""
    wants: str = ""
    free: bool = False

    def to_bytes(self, client: bytes | None) -> bytes:
        """The bytes to send. `client` is the address that a proxy writes below the last line that it found."""
        if self.raw:
            return self.raw.replace(PROXY, b"" if client is None else FORWARDED_FOR + client + b"\r\n")
        lines = [b"X-Client: 6", *self.lines]  # the first of its own may be folded into the line above
        if client is not None:
            given = [at for at, line in enumerate(lines) if line.lower().startswith(b"x-forwarded-for:")]
            lines.insert(given[-1] + 1 if given else 0, FORWARDED_FOR + client)
        if self.body and not any(line.startswith(b"Transfer-Encoding") for line in lines):
            lines.append(b"Content-Length: %d" % len(self.body))
        host = () if self.host is None else (b"Host: " + self.host,)
        return b"\r\n".join([self.start, *host, b"Connection: close", *lines, b"", self.body])


def _named(kind: str, value: bytes) -> str:
    shown = repr(value)[2:-1]
    return f"{kind} {shown if len(shown) < 60 else f'{shown[:50]}… ({len(value)} bytes)'}"


def _headers(name: bytes, values: tuple[bytes, ...]) -> list[Hostile]:
    """One request for each value of a header."""
    return [Hostile(_named(name.decode(), value), lines=(name + b": " + value,)) for value in values]


CHAINS: Final = (
    b"6.6.6.6", b"6.6.6.6, 7.7.7.7", b"6.6.6.6,7.7.7.7,8.8.8.8,9.9.9.9", b"6.6.6.6,", b", 6.6.6.6", b",", b",,,,", b"",
    b" , ", b"\t6.6.6.6\t", b"127.0.0.1", b"127.0.0.1, 127.0.0.1, 127.0.0.1", b"6.6.6.6, 127.0.0.1", b"localhost",
    b"6.6.6.6:80", b"6.6.6.6:65536", b"6.6.6.6:", b"6.6.6.6:http", b"[6.6.6.6]", b"[2001:db8::6]", b"[2001:db8::6]:443",
    b"[2001:db8::6", b"2001:db8::6]", b"[[2001:db8::6]]", b"2001:db8::6", b"2001:db8::6:443", b"2001:DB8:0:0:0:0:0:6",
    b"fe80::1%eth0", b"fe80::1%25eth0", b"[fe80::1%eth0]:80", b"6.6.6.6%eth0", b"%", b"::", b"::1", b"0.0.0.0",
    b"::ffff:6.6.6.6", b"::ffff:606:606", b"::FFFF:127.0.0.1", b"0:0:0:0:0:ffff:606:606", b"64:ff9b::6.6.6.6",
    b"::6.6.6.6", b"2002:606:606::", b"2001:0:4136:e378:8000:63bf:3fff:fdd2", b"unknown", b"_hidden", b"null", b"none",
    b"01.2.3.4", b"0x7f.1", b"127.1", b"2130706433", b"1.2.3.4.5", b"999.1.1.1", b"-1", b"1e3", b"6.6.6.6/32", b"*",
    "６.６.６.６".encode(), "٦.٦.٦.٦".encode(), "6。6。6。6".encode(), "②.2.2.2".encode(), "::ﬀ".encode(),
    b"\xff\xfe6.6.6.6", b"\xa06.6.6.6", b"6.6.6.6\xad", b"6.6.6.6\x0b", b"6.6.6.6\x1f", b"6.6.6.6\x00", b"6.6.6.6\x7f",
    b'"6.6.6.6"', b"<6.6.6.6>", b"{6.6.6.6}", b"6.6.6.6;7.7.7.7", b"6.6.6.6 7.7.7.7", b"for=6.6.6.6",
    b"6.6.6.6%0d%0aX-Real-IP: 7.7.7.7", b"6.6.6.6\r\n 7.7.7.7", b"6.6.6.6\r7.7.7.7", b"6.6.6.6\n7.7.7.7",
    b"' OR 1=1 --", b"${jndi:ldap://x}", b"a" * 7_000, b"6.6.6.6," * 900, b"127.0.0.1," * 700, b"," * 7_000,
    b"[" * 7_000, b":" * 7_000, b"1" * 7_000, b"6.6.6.6," * 4_000,
)  # fmt: skip
FORWARDED: Final = (
    b"for=6.6.6.6", b'for="[2001:db8::6]:4711"', b"For=6.6.6.6;proto=http;by=7.7.7.7", b"for=6.6.6.6, for=7.7.7.7",
    b'for="6.6.6.6', b"for=unknown", b"for=_x", b"for=", b";;;", b'host=",for=6.6.6.6,"', b'"' * 7_000, b"\\" * 7_000,
    b'for="\\"' * 900, b"for=6.6.6.6;" * 500,
)  # fmt: skip
NAMES: Final = (
    b"Forwarded-For", b"X-Forwarded", b"X-Real-IP", b"CF-Connecting-IP", b"True-Client-IP", b"X-Client-IP",
    b"X-Cluster-Client-IP", b"Fastly-Client-IP", b"X-Originating-IP", b"X-Remote-IP", b"X-Remote-Addr", b"Client-IP",
    b"X-Azure-ClientIP", b"Fly-Client-IP", b"X-Envoy-External-Address", b"X-ProxyUser-Ip", b"Via", b"REMOTE-ADDR",
    b"X_Forwarded_For", b"x_forwarded-for", b"X-Forwarded_For", b"HTTP_X_FORWARDED_FOR", b"REMOTE_ADDR",
    b"X-Forwarded-For ", b" X-Forwarded-For", b"X-Forwarded-For\t", b"X-Forwarded-For\x00", b"X-Forwarded-F\xc3\xb6r",
)  # fmt: skip
DUPLICATES: Final = (
    (b"X-Forwarded-For: 6.6.6.6", b"X-Forwarded-For: 7.7.7.7"),
    (b"X-Forwarded-For: 6.6.6.6", b"x-forwarded-for: 7.7.7.7", b"X-FORWARDED-FOR: 8.8.8.8"),
    (b"X-Forwarded-For:", b"X-Forwarded-For: 6.6.6.6"),
    (b"X-Forwarded-For: 127.0.0.1", b"X-Forwarded-For: unknown"),
    (b"X-Forwarded-For: 6.6.6.6", b"Forwarded: for=7.7.7.7", b"X-Real-IP: 8.8.8.8"),
    (b"X-Forwarded-For: 6.6.6.6", b"X_Forwarded_For: 7.7.7.7"),
    *(tuple(b"X-Forwarded-For: 6.6.6.%d" % number for number in range(count)) for count in (60, 300)),
)
USERS: Final = (
    b"Remote-User: admin", b"REMOTE_USER: admin", b"X-Remote-User: admin", b"X-Forwarded-User: admin",
    b"X-Authenticated-User: admin", b"Authorization: Basic YWRtaW46YWRtaW4=", b"Authorization: Basic \xff\xfe",
    b"Authorization: Bearer " + b"a" * 7_000, b"Cookie: sessionid=6; session=6", b"Cookie: " + b"a=b; " * 1_400,
    b"Cookie: sessionid=\xff\x80", "X-User: ａｄｍｉｎ".encode(), "X-User: ADM\u0130N".encode(),
)  # fmt: skip
API_KEYS: Final = (
    b"key", b"", b" key ", b"KEY", "ｋｅｙ".encode(), "ke\u0301y".encode(), "k\u200bey".encode(), "\ufb00".encode(),
    b"\xff\xfe\xfd", b"k\xe9y", b"key\x00", b"key\x01", b"{key}", b"a:b", b"key%00", b"key%0d%0aSET x 1", b"k" * 127,
    b"k" * 7_000, b"k" * 70_000,
)  # fmt: skip
METHODS: Final = (
    b"HEAD", b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS", b"TRACE", b"QUERY", b"PROPFIND", b"PURGE", b"M-SEARCH",
    b"get", b"Get", b"head", b"options", b"FOO", b"G" * 200, b"GET!", b"\xc7ET", b"GET\x00", b"GET,POST", b"0",
)  # fmt: skip
OVERRIDES: Final = (
    (b"X-HTTP-Method-Override: POST",), (b"X-HTTP-Method: POST",), (b"X-Method-Override: POST",), (b"_method: POST",),
    (b"X-HTTP-Method-Override: OPTIONS", b"Origin: https://a.example", b"Access-Control-Request-Method: POST"),
    (b"X-Original-URL: /", b"X-Rewrite-URL: /"), (b"X-Original-Method: GET",),
)  # fmt: skip
ORIGIN, ASKS = b"Origin: https://a.example", b"Access-Control-Request-Method: POST"
PREFLIGHTS: Final = (
    Hostile("a browser's preflight", b"OPTIONS / HTTP/1.1", (ORIGIN, ASKS), free=True),
    Hostile("a preflight without a method", b"OPTIONS / HTTP/1.1", (ORIGIN,)),
    Hostile("a preflight without an origin", b"OPTIONS / HTTP/1.1", (ASKS,)),
    Hostile("a preflight of empty lines", b"OPTIONS / HTTP/1.1", (b"Origin:", b"Access-Control-Request-Method:")),
    Hostile("a preflight with a body", b"OPTIONS / HTTP/1.1", (ORIGIN, ASKS), body=b"password=1"),
    Hostile(
        "a preflight with chunks",
        b"OPTIONS / HTTP/1.1",
        (ORIGIN, ASKS, b"Transfer-Encoding: chunked"),
        body=b"3\r\na=b\r\n0\r\n\r\n",
    ),
    Hostile("a preflight with a cookie", b"OPTIONS / HTTP/1.1", (ORIGIN, ASKS, b"Cookie: session=6")),
    Hostile("a preflight with a password", b"OPTIONS / HTTP/1.1", (ORIGIN, ASKS, b"Authorization: Basic YTph")),
    *(
        Hostile(f"{method.decode()} that looks like a preflight", method + b" / HTTP/1.1", (ORIGIN, ASKS))
        for method in (b"GET", b"POST", b"HEAD", b"OPTION", b"OPTIONS*")
    ),
    Hostile("a preflight in underscores", b"OPTIONS / HTTP/1.1", (ORIGIN, b"Access_Control_Request_Method: POST")),
)
VERSIONS: Final = (
    Hostile("HTTP/1.0 without Host", b"GET / HTTP/1.0", host=None),
    Hostile("HTTP/1.0 with Host", b"GET / HTTP/1.0"),
    Hostile("HTTP/1.0 kept alive", b"GET / HTTP/1.0", (b"Keep-Alive: timeout=5",), host=None),
    Hostile("HTTP/1.1 without Host", host=None),
    Hostile("HTTP/1.1 with two Hosts", lines=(b"Host: other.example",)),
    *(
        Hostile(_named("Host", host), host=host)
        for host in (
            b"", b"127.0.0.1", b"evil.example/login?", b"a:b:c", b"a@b", b"[::1", b"\xff", b"a" * 7_000, b"a b",
            b"shop.example:99999", "ｓｈｏｐ.example".encode(), b"../..", b"shop.example#",
        )
    ),
    *(
        Hostile(_named("start line", start), start)
        for start in (
            b"GET /", b"GET / HTTP/2.0", b"GET / HTTP/9.9", b"GET / HTTP/1.1x", b"GET  /  HTTP/1.1",
            b"GET\t/\tHTTP/1.1", b"GET / http/1.1", b" GET / HTTP/1.1", b"GET / HTTP/1.1 ", b"\x00", b"PRI * HTTP/2.0",
            b"\x16\x03\x01\x02\x00",
        )
    ),
)  # fmt: skip
TARGETS: Final = (
    b"*", b"//", b"///", b"/./", b"/../", b"/..%2f..%2fetc/passwd", b"/%2e%2e/", b"/%00", b"/%0a", b"/%0d%0a", b"/%ff",
    b"/%c0%af", b"/%", b"/%zz", b"/%u0061", b"/\xff", "/ｌｏｇｉｎ".encode(), b"/%ef%bc%8f", b"/;a=b", b"/?", b"/#x",
    b"/?%ff=%00", b"/?" + b"a=b&" * 1_500, b"/" + b"a" * 3_500, b"/" * 3_500, b"/" + b"%41" * 1_100, b"/[]{}|\\^`",
    b"http://evil.example/", b"http://evil.example", b"HTTP://EVIL/", b"https://user:pw@evil.example:1/", b"http://",
    b"http:///", b"http:/", b"foo:bar", b"evil.example:443", b"", b"nowhere", b"?", b"#", b"/\x7f", b"/a b", b"\\",
)  # fmt: skip
WEIRD: Final = (
    Hostile("90 header lines", lines=tuple(b"X-%d: 6" % number for number in range(90))),
    Hostile("2,000 header lines", lines=tuple(b"X-%d: 6" % number for number in range(2_000))),
    Hostile("a header of 100,000 bytes", lines=(b"X-Long: " + b"a" * 100_000,)),
    Hostile("a header without a name", lines=(b": 6.6.6.6",)),
    Hostile("a header without a colon", lines=(b"X-Forwarded-For",)),
    Hostile("a folded first line", lines=(b" 6.6.6.6",)),
    Hostile("Expect", b"POST / HTTP/1.1", (b"Expect: 100-continue",), body=b"a=b"),
    Hostile("another Expect", b"POST / HTTP/1.1", (b"Expect: 6.6.6.6",), body=b"a=b"),
    Hostile("an Upgrade to something", lines=(b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAAQAAP__")),
    Hostile("Range", lines=(b"Range: bytes=0-1,2-3,4-",)),
    *(
        Hostile(_named("Accept", accept), lines=(b"Accept: " + accept,))
        for accept in (
            b"text/html;q=nan", b"text/html;q=1e999", b"text/html;q=9.999", b"*/*;q=", b";;;,,,", b"text/html;q=\xb2",
            b"text/html," * 700, b"text/html" + b";" * 7_000, "text/html;q=１".encode(), b"text/html;q=0.5;q=2",
        )
    ),
    *_headers(b"Content-Type", (b"application/json; charset=\xff", b"text/plain; charset=x", b"multipart/form-data")),
    Hostile("a body that is not what it says", b"POST / HTTP/1.1", (b"Content-Type: application/json",), body=b"{\xff"),
    Hostile("a body that is too large for its view", b"POST / HTTP/1.1", body=b"a" * 60_000),
)  # fmt: skip


def _smuggled(name: str, lines: bytes, body: bytes) -> Hostile:
    start = b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
    return Hostile(name, raw=start + PROXY + lines + b"\r\n\r\n" + body)


INNER: Final = b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX-Forwarded-For: 6.6.6.6\r\n" + PROXY + b"\r\n"
TRAILER: Final = _smuggled(
    "a trailer that forwards", b"Transfer-Encoding: chunked", b"0\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n"
)
SMUGGLED: Final = (
    _smuggled("CL.TE", b"Content-Length: 6\r\nTransfer-Encoding: chunked", b"0\r\n\r\n" + INNER),
    _smuggled("TE.CL", b"Transfer-Encoding: chunked\r\nContent-Length: 3", b"0\r\n\r\n" + INNER),
    _smuggled("CL.CL", b"Content-Length: 0\r\nContent-Length: %d" % len(INNER), INNER),
    _smuggled("CL 0, 0", b"Content-Length: 0, 0", INNER),
    _smuggled("CL +0", b"Content-Length: +0", INNER),
    _smuggled("CL -1", b"Content-Length: -1", INNER),
    _smuggled("CL 0x0", b"Content-Length: 0x0", INNER),
    _smuggled("CL of many digits", b"Content-Length: " + b"9" * 5_000, INNER),
    _smuggled("CL in full-width digits", "Content-Length: ５".encode(), INNER),
    _smuggled("CL too short", b"Content-Length: 0", INNER),
    _smuggled("TE twice", b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity", b"0\r\n\r\n" + INNER),
    _smuggled("TE xchunked", b"Transfer-Encoding: xchunked", b"0\r\n\r\n" + INNER),
    _smuggled("TE before its colon", b"Transfer-Encoding : chunked", b"0\r\n\r\n" + INNER),
    _smuggled("TE after a tab", b"Transfer-Encoding:\tchunked", b"0\r\n\r\n" + INNER),
    _smuggled("TE after a folded line", b"X: y\r\n Transfer-Encoding: chunked", b"0\r\n\r\n" + INNER),
    _smuggled("TE of a chunk with an extension", b"Transfer-Encoding: chunked", b'0;a="\r\n\r\n' + INNER),
    _smuggled("TE of a chunk of many digits", b"Transfer-Encoding: chunked", b"F" * 40 + b"\r\n" + INNER),
    TRAILER,
    Hostile("two requests in one packet", raw=b"GET / HTTP/1.1\r\nHost: a\r\n" + PROXY + b"\r\n" + INNER),
    Hostile("bare line feeds", raw=b"GET / HTTP/1.1\nHost: a\nConnection: close\nX-Forwarded-For: 6\n" + PROXY + b"\n"),
)  # fmt: skip

GUARDED: Final = ("login", "session", "board", "decorated")
"""Views behind a rule for their path ("/login", "/session" for POST, "/api/*" for board), or behind `@limit`."""

HOME: Final = {"login": b"/login", "session": b"/session", "board": b"/api/board", "decorated": b"/decorated"}


def _spellings(path: bytes) -> list[bytes]:
    """Other spellings of a path."""
    first, rest = path[1:2], path[2:]
    ends = (
        b"/", b"//", b"/.", b"/..", b"/./", b"%2f", b"%2F", b"/%2e", b";", b";a=b", b";/", b"%3b", b"?", b"?a=/",
        b"%3f", b"#", b"#a", b"%23", b"%20", b"%09", b"%0a", b"%0d", b"%0a%0a", b"%0d%0a", b"%00", b".", b".json",
        b"%e2%80%8b", b"%ff", b"*", b"%",
    )  # fmt: skip
    return [
        path,
        *(path.replace(b"/", other) for other in (b"//", b"/./", b"/x/../", b"\\")),
        *(path + end for end in ends),
        b"/%" + first.hex().encode() + rest,
        b"/%" + first.hex().upper().encode() + rest,
        b"/%25" + first.hex().encode() + rest,
        b"%2f" + path[1:],
        b"/%2f" + path[1:],
        b"/%2e" + path,
        b"/%2e%2e" + path,
        b"/;" + path,
        b"/" + b"/" * 50 + path,
        path.upper(),
        path.title(),
        path[1:],
        b"/" + (chr(first[0] + 0xFEE0)).encode() + rest,  # a full-width first letter
        b"/%" + b"%".join(b"%02x" % byte for byte in chr(first[0] + 0xFEE0).encode()) + rest,
        b"http://evil.example" + path,
        b"http://evil.example/" + path,
        b"//evil.example" + path,
        b"/app" + path,
        b"/api/.." + path,
    ]


TRICKS: Final = tuple(
    Hostile(_named(f"{view} as", b"POST " + target), b"POST " + target + b" HTTP/1.1", wants=view)
    for view in GUARDED
    for target in _spellings(HOME[view])
)
VERBS: Final = tuple(
    Hostile(_named(f"{view} by", method), method + b" " + HOME[view] + b" HTTP/1.1", wants=view)
    for view in GUARDED
    for method in (b"post", b"Post", b"POST\t", b"PUT", b"get", b"head", b"HEAD", b"OPTIONS", b"options", b"FOO")
)
OVERRIDDEN: Final = tuple(
    Hostile(
        f"{view} by {method.decode()} with {line.partition(b':')[0].decode()}",
        method + b" " + HOME[view] + b"?_method=POST HTTP/1.1",
        (line, *extra),
        body=b"_method=POST",
        wants=view,
    )
    for view in ("login", "session")
    for method in (b"GET", b"OPTIONS", b"PUT")
    for line, *extra in OVERRIDES
)
MOUNTED: Final = tuple(
    Hostile(f"{view} with {line.decode()}", b"POST /app" + HOME[view] + b" HTTP/1.1", (line,), wants=view)
    for view in GUARDED
    for line in (b"SCRIPT_NAME: /app", b"Script-Name: /app", b"X-Forwarded-Prefix: /app", b"X-Script-Name: /app")
)

UPGRADE: Final = Hostile(
    "a WebSocket handshake",
    lines=(
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
    ),
)

CORPUS: Final = (
    *_headers(b"X-Forwarded-For", CHAINS),
    *_headers(b"Forwarded", FORWARDED),
    *(Hostile(_named("named", name), lines=(name + b": 6.6.6.6",)) for name in NAMES),
    *(Hostile(f"{len(lines)} lines, {lines[-1].decode()}", lines=lines) for lines in DUPLICATES),
    *(Hostile(_named("user", line), lines=(line,)) for line in USERS),
    *_headers(b"X-API-Key", API_KEYS),
    Hostile("X-API-Key twice", lines=(b"X-API-Key: a", b"X-API-Key: b")),
    *(Hostile(_named("method", method), method + b" / HTTP/1.1") for method in METHODS),
    *(Hostile(_named("override", lines[0]), lines=lines) for lines in OVERRIDES),
    *PREFLIGHTS,
    *VERSIONS,
    *(Hostile(_named("target", target), b"GET " + target + b" HTTP/1.1") for target in TARGETS),
    *WEIRD,
    *SMUGGLED,
    *TRICKS,
    *VERBS,
    *OVERRIDDEN,
    *MOUNTED,
    UPGRADE,
)
