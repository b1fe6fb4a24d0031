"""The JSON document of a replay: its values by their names, in the order of `result.py`."""

from __future__ import annotations

from sluicegate.errors import needs

with needs("replay"):
    import orjson


def as_json(result: tuple[object, ...]) -> bytes:
    """Return a result as JSON. The names are those of the fields, and docs/replay-report.md lists them."""
    return orjson.dumps(plain_values(result), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def plain_values(value: object) -> object:
    """Return a value of `result.py` as dictionaries and lists.

    The name of a file may have bytes that are not UTF-8, which Python keeps as surrogates. They are shown escaped.
    """
    if isinstance(value, tuple):
        names = getattr(value, "_fields", None)
        return [plain_values(each) for each in value] if names is None else _by_name(value, names)
    return value.encode("utf-8", "backslashreplace").decode() if isinstance(value, str) else value


def _by_name(value: tuple[object, ...], names: tuple[str, ...]) -> dict[str, object]:
    return {name: plain_values(each) for name, each in zip(names, value, strict=True)}
