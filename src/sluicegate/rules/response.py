"""The response as a function of a rule gets it, and the two options that are such functions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from sluicegate.errors import AsyncMismatchError, RuleError, shows_half_made
from sluicegate.runtime.awaiting import check_call, check_hash, close_unawaited, is_async, label_of, waits


@shows_half_made
class Headers(Mapping[str, str]):
    """The header fields of a response. Look a field up with its name in any case. Several lines with the same name are
    joined with commas.

    >>> Headers([("Content-Type", "text/plain")])["content-type"]
    'text/plain'
    """

    __slots__ = ("_lines",)

    def __init__(self, lines: Iterable[tuple[str, str]] = ()) -> None:
        self._lines = tuple([(name.lower(), value) for name, value in lines])

    def __getitem__(self, name: str) -> str:
        values = [value for known, value in self._lines if known == name.lower()]
        if not values:
            raise KeyError(name)
        return ", ".join(values)

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._lines))

    def __len__(self) -> int:
        return len(dict(self._lines))

    def __repr__(self) -> str:
        return f"Headers({list(self._lines)!r})"


@shows_half_made
@dataclass(frozen=True, slots=True)
class Response:
    """The start of a response, without its body: the argument of `charge_when` and `refund_when` in every framework.

    An exception that no handler handles counts as a response with the status 500 and without headers.

    >>> Response(401).status_code, Response(401).headers.get("location")
    (401, None)
    """

    status_code: int
    headers: Mapping[str, str] = field(default_factory=Headers)
    login_failed: bool = False  # Django has sent its signal `user_login_failed` for the request


def login_failed(response: Response) -> bool:
    """True if this is the response to a failed login. Give it as `charge_when`, with `methods=["POST"]`.

    A login fails with the status 400, 401 or 403, or with 200 and a page of HTML: the form again, as of Django's
    LoginView, the admin and allauth. In Django it also fails if `authenticate` finds no user, whatever the response is.

    >>> login_failed(Response(401)), login_failed(Response(302))
    (True, False)
    """
    media = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    is_form = response.status_code == 200 and media == "text/html"
    return response.login_failed or is_form or response.status_code in (400, 401, 403)


class Refund(NamedTuple):
    """Says whether a response refunds the charge, by the function that was given as one of the two options.

    Two refunds with equal fields are equal, so that the cache of terms finds the terms made from an equal refund.
    """

    option: Literal["charge_when", "refund_when"]
    function: Callable[[Response], object]

    def __call__(self, response: Response) -> bool:
        """Call the function. Raises AsyncMismatchError if it returns an awaitable."""
        answer = self.function(response)
        if waits(answer):
            close_unawaited(answer)
            raise _is_async(self.option, self.function)
        return bool(answer) is (self.option == "refund_when")


def when_to_refund(charge_when: object, refund_when: object) -> Refund | None:
    """Make one value from the two options of a rule; None if neither is given.

    Raises RuleError if both options are given, or if the value is not a function. Raises AsyncMismatchError for an
    async function.
    """
    if charge_when is None and refund_when is None:
        return None
    option: Literal["charge_when", "refund_when"] = "refund_when" if charge_when is None else "charge_when"
    given = refund_when if charge_when is None else charge_when
    if charge_when is not None and refund_when is not None:
        expected = "keep one of the two, each is the opposite of the other"
        raise RuleError(option, given, problem="given beside refund_when", expected=expected)
    return Refund(option, of_response(option, given, example="response.status_code == 401"))


def of_response(option: str, given: object, *, example: str) -> Callable[..., object]:
    """Return a plain function of the response. Raises RuleError or AsyncMismatchError for any other value."""
    if not callable(given):
        expected = f"give a plain function of the response, as lambda response: {example}"
        raise RuleError(option, given, problem="not a function", expected=expected)
    check_hash(option, given, error=RuleError)  # the cache of terms has these values as keys
    if is_async(given):
        raise _is_async(option, given)
    check_call(option, given, takes=("response",), error=RuleError)
    return given


def _is_async(what: str, function: object) -> AsyncMismatchError:
    expected = "give a plain function: it is called while the response waits to be sent"
    return AsyncMismatchError(what, label_of(function), problem="an async function", expected=expected)
