"""Syntaxes of format strings: what nginx, Apache, HAProxy and gunicorn call the parts of a line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from sluicegate.replay.formats import Layout, Part
from sluicegate.replay.traffic import FIELD, HEADER

_HEADERS: Final = {"user-agent": Part("agent"), "x-forwarded-for": Part("forwarded"), "host": Part("host")}


def header(name: str) -> Part:
    """Return the part of a header of the request."""
    name = name.lower().replace("_", "-")
    return _HEADERS.get(name, Part(HEADER + name))


def _parts(pieces: Sequence[str | None], groups: int, part_of: Callable[..., Iterator[str | Part]]) -> list[str | Part]:
    """Return the parts of a format string that was split by a pattern with so many groups."""
    found: list[str | Part] = []
    for at in range(0, len(pieces), groups + 1):
        if literal := pieces[at]:
            found.append(literal)
        if at + 1 < len(pieces):
            found += part_of(*[piece or "" for piece in pieces[at + 1 : at + 1 + groups]])
    return found


# https://nginx.org/en/docs/varindex.html; $time_local, $msec and $time_iso8601 are the time of logging: the end.
_NGINX: Final = {
    "remote_addr": Part("address", "address"),
    "remote_user": Part("user"),
    "time_local": Part("end", "clf"),
    "time_iso8601": Part("end", "iso"),
    "msec": Part("end", "seconds"),
    "request": Part("request"),
    "request_method": Part("method"),
    "request_uri": Part("target"),
    "uri": Part("path", "decoded"),
    "document_uri": Part("path", "decoded"),
    "args": Part("query"),
    "query_string": Part("query"),
    "status": Part("status", "status"),
    "body_bytes_sent": Part("bytes", "number"),
    "bytes_sent": Part("bytes", "number"),
    "request_time": Part("duration", "seconds"),
    "host": Part("host"),
    "server_name": Part("host"),
}
_NGINX_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))")


def nginx(given: str, *, name: str = "nginx", escape: str | None = None) -> Layout:
    """Return the format of an nginx `log_format`. Without its `escape`, an object of JSON has the escapes of JSON."""

    def part_of(braced: str, bare: str) -> Iterator[str | Part]:
        variable = braced or bare
        part = header(variable[5:]) if variable.startswith("http_") else _NGINX.get(variable, Part(FIELD + variable))
        yield part._replace(written=f"${variable}")

    parts = _parts(_NGINX_VARIABLE.split(given), 2, part_of)
    default = "json" if given.lstrip().startswith("{") else "backslash"
    return Layout(name, tuple(parts), default if escape is None else escape)


# https://nginx.org/en/docs/ngx_core_module.html; a comment is in no group.
_CONF_WORD: Final = re.compile(
    r"""\#[^\n]*|'((?:[^'\\]|\\.)*)'|"((?:[^"\\]|\\.)*)"|([;{}])"""
    r"""|((?:\$\{\w*\}|\\.|[^\s;{}'"\\])(?:\$\{\w*\}|\\.|[^\s;{}\\])*)""",
    re.DOTALL,
)
_CONF_ESCAPE: Final = re.compile(r"\\([\\'\"trn])")
_CONF_SIGNS: Final = {"t": "\t", "r": "\r", "n": "\n"}
_NGINX_ESCAPES: Final = {"escape=default": "backslash", "escape=json": "json", "escape=none": ""}


def log_formats(conf: str) -> dict[str, Layout]:
    """Return the formats that an nginx.conf has, by their names.

    >>> [*log_formats("log_format short '$remote_addr ' $msec; log_format long escape=json '{$args}';")]
    ['short', 'long']
    """
    found, words = dict[str, Layout](), list[str]()
    for single, double, end, bare in _CONF_WORD.findall(conf):
        if end:  # of a directive, or of its head
            if words[:1] == ["log_format"] and len(words) > 2:
                _, name, *pieces = words
                escape = _NGINX_ESCAPES.get(pieces[0])
                given = "".join(pieces[escape is not None :])
                found[name] = nginx(given, name=name, escape="backslash" if escape is None else escape)
            words = []
        elif word := single or double or bare:
            words.append(_CONF_ESCAPE.sub(lambda sign: _CONF_SIGNS.get(sign[1], sign[1]), word))
    return found


# https://httpd.apache.org/docs/2.4/mod/mod_log_config.html; %t is the start of the request.
_APACHE: Final = {
    "h": Part("address", "address"),
    "a": Part("address", "address"),
    "u": Part("user"),
    "r": Part("request"),
    "m": Part("method"),
    "U": Part("path", "decoded"),
    "q": Part("query", "?"),
    "s": Part("status", "status"),
    "b": Part("bytes", "number"),
    "B": Part("bytes", "number"),
    "O": Part("bytes", "number"),
    "D": Part("duration", "microseconds"),
    "T": Part("duration", "seconds"),
    "v": Part("host"),
    "V": Part("host"),
}
_APACHE_TIMES: Final = {"sec": "seconds", "msec": "milliseconds", "usec": "microseconds"}
_APACHE_DURATIONS: Final = {"s": "seconds", "ms": "milliseconds", "us": "microseconds"}
_APACHE_DIRECTIVE: Final = re.compile(r"%[!0-9,<>]*(?:\{([^{}]*)\})?(\^?[A-Za-z%])")


def apache(given: str, *, name: str = "apache") -> Layout:
    """Return the format of an Apache `LogFormat`, with or without backslashes before its quotes."""

    def part_of(argument: str, letter: str) -> Iterator[str | Part]:
        if letter == "%":
            yield "%"
        elif letter == "t":
            moment, _, form = (
                argument.rpartition(":") if argument.startswith(("begin:", "end:")) else ("", "", argument)
            )
            column = "end" if moment == "end" else "time"
            if not form:
                yield from ("[", Part(column, "clf"), "]")
            elif form in _APACHE_TIMES:
                yield Part(column, _APACHE_TIMES[form])
            else:
                yield Part(FIELD + form) if form.endswith("_frac") else Part(column, f"strftime:{form}")
        elif letter == "T" and argument:
            yield Part("duration", _APACHE_DURATIONS.get(argument, "seconds"))
        elif letter == "i":
            yield header(argument)
        elif argument and letter != "a":  # another part that is named: a header of the answer, a variable, a note
            yield Part(FIELD + argument)
        else:
            yield _APACHE.get(letter, Part(FIELD + letter))

    return Layout(name, tuple(_parts(_APACHE_DIRECTIVE.split(given.replace('\\"', '"')), 2, part_of)))


# https://docs.gunicorn.org/en/stable/settings.html#access-log-format; %(t)s is the time of logging.
_GUNICORN: Final = {
    **{letter: part for letter, part in _APACHE.items() if letter not in "qDT"},
    "U": Part("path", "wsgi"),
    "q": Part("query"),
    "a": Part("agent"),
    "D": Part("duration", "microseconds"),
    "M": Part("duration", "milliseconds"),
    "L": Part("duration", "seconds"),
    "T": Part("duration", "seconds"),
}
_GUNICORN_ATOM: Final = re.compile(r"%\(([^()]*)\)s")


def gunicorn(given: str, *, name: str = "gunicorn") -> Layout:
    """Return the format of gunicorn's `access_log_format`."""

    def part_of(atom: str) -> Iterator[str | Part]:
        if atom == "t":
            yield from ("[", Part("end", "clf"), "]")
        elif atom.startswith("{") and atom.endswith("}i"):
            yield header(atom[1:-2])
        else:
            yield _GUNICORN.get(atom, Part(FIELD + atom.strip("{}")))

    return Layout(name, tuple(_parts(_GUNICORN_ATOM.split(given), 1, part_of)))


# https://docs.haproxy.org/2.6/configuration.html#8.2.4; %tr and %t are the start of the request.
_HAPROXY: Final = {
    "ci": Part("address", "address"),
    "tr": Part("time", "haproxy"),
    "t": Part("time", "haproxy"),
    "trl": Part("time", "clf"),
    "trg": Part("time", "clf"),
    "Tl": Part("end", "clf"),
    "T": Part("end", "clf"),
    "Ts": Part("end", "seconds"),
    "r": Part("request"),
    "HM": Part("method"),
    "HU": Part("target"),
    "HP": Part("target"),
    "HQ": Part("query", "?"),
    "ST": Part("status", "status"),
    "B": Part("bytes", "number"),
    "Ta": Part("duration", "milliseconds"),
    "Tt": Part("duration", "milliseconds"),
    "hr": Part(f"{FIELD}hr", "captured"),
    "hs": Part(f"{FIELD}hs", "captured"),
}
_HAPROXY_VARIABLE: Final = re.compile(r"%(?:\{([^{}]*)\})?([A-Za-z]+|\[[^\[\]]*\])")


def haproxy(given: str, *, name: str = "haproxy") -> Layout:
    """Return the format of HAProxy's `log-format`. Lines may begin with what syslog puts before them."""

    def part_of(flags: str, variable: str) -> Iterator[str | Part]:
        part = _HAPROXY.get(variable, Part(FIELD + variable.strip("[]")))
        yield from ('"', part, '"') if "+Q" in flags else (part,)

    found = _parts(_HAPROXY_VARIABLE.split(given.replace("%hr ", "%hr").replace("%hs ", "%hs")), 2, part_of)
    return Layout(name, (Part("", "prefix"), *_joined(found)), "hash")


def _joined(parts: list[str | Part]) -> Iterator[str | Part]:
    """Join texts that stand side by side: a pattern looks at what follows a part."""
    text = ""
    for part in parts:
        if isinstance(part, str):
            text += part
        else:
            yield from (text, part) if text else (part,)
            text = ""
    if text:
        yield text
