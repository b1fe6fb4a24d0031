"""The tests that may fail with sluicegate inserted: for each insertion, a reason for each test.

First find out whether the failure is a bug in sluicegate; a bug becomes an issue, not a row here. A run lists the rows
that it did not need.
"""

from __future__ import annotations

from typing import Final

_HELD: Final = "a slot is released after the last byte, which takes one turn of the event loop: "
_ORDER: Final = f"{_HELD}the test expects one order of two concurrent requests"
_CUT: Final = f"{_HELD}a client that disconnects in this turn cancels the background task before it starts"
_SENDFILE: Final = "a response that holds a slot is not passed to the server's file wrapper (docs/concurrency.md)"

_ONE_PLAN: Final = "a request that one throttle refuses costs nothing in the others (docs/drf.md)"
_NO_HISTORY: Final = "the test changes `history`, the list that the frameworks keep in the cache (docs/drf.md)"
_THROTTLING: Final = "tests/test_throttling.py::ThrottlingTests"

EXCUSED: Final[dict[str, dict[str, str]]] = {
    "drf_throttles": {
        f"{_THROTTLING}::test_request_throttling_multiple_throttles": _ONE_PLAN,
        f"{_THROTTLING}::test_throttle_rate_change_negative": _ONE_PLAN,
        "tests/test_throttling.py::SimpleRateThrottleTests"
        "::test_wait_returns_correct_waiting_time_without_history": _NO_HISTORY,
    },
    "ninja_throttles": {"test_throttling.py::test_wait": _NO_HISTORY},
    "last+rules": {"wsgi.tests.WSGITest.test_file_wrapper": _SENDFILE},
    "starlette_middleware+rules": {"tests/test_testclient.py::test_closing_client_cancels_unclosed_response": _CUT},
    "asgi_middleware+rules": {
        "tests/middleware/test_base.py::test_do_not_block_on_background_tasks": _ORDER,
        "tests/test_testclient.py::test_closing_client_cancels_unclosed_response": _CUT,
    },
}
