"""The tests that may fail with sluicegate inserted, each with its reason, by insertion.

Ask first whether such a failure shows a defect of sluicegate: then it belongs to the issues, not here. A run names the
excuses that it did not need.
"""

from __future__ import annotations

from typing import Final

_HELD: Final = "a place that is held is given back after the last byte, which takes a turn of the event loop: "
_ORDER: Final = f"{_HELD}the test wants one order of two requests that run at the same time"
_CUT: Final = f"{_HELD}a client that hangs up in this turn cuts off the background task before it begins"
_SENDFILE: Final = "a response that holds a place is not handed to the server's file wrapper (docs/concurrency.md)"

EXCUSED: Final[dict[str, dict[str, str]]] = {
    "last+rules": {"wsgi.tests.WSGITest.test_file_wrapper": _SENDFILE},
    "starlette_middleware+rules": {"tests/test_testclient.py::test_closing_client_cancels_unclosed_response": _CUT},
    "asgi_middleware+rules": {
        "tests/middleware/test_base.py::test_do_not_block_on_background_tasks": _ORDER,
        "tests/test_testclient.py::test_closing_client_cancels_unclosed_response": _CUT,
    },
}
