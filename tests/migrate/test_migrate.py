"""`sluicegate migrate`: five applications for each library, and what stays as it is."""

from __future__ import annotations

import ast
import errno
import io
import json
import os
import re
import subprocess
import sys
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from docs.pages import FENCE, ROOT
from sluicegate.cli.commands import sluicegate
from sluicegate.migrate import Migrated, migrate, write

PAGES = sorted(Path(__file__).parent.glob("*.md"))
PEERS = re.compile(r"flask_limiter|slowapi|fastapi_limiter|pyrate_limiter|django_ratelimit|rest_framework.throttling")
FORBIDDEN = 403  # what django-ratelimit refuses with


def applications() -> Iterator[Any]:
    """The files of each application on the pages beside this one."""
    for page in PAGES:
        for section in re.split(r"^## ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            files = {found["title"]: found["text"] for found in FENCE.finditer(section)}
            yield pytest.param(files, id=f"{page.stem}: {section.partition(chr(10))[0]}")


def written(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir()
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def migrated(folder: Path) -> list[Migrated]:
    """Rewrite a folder."""
    found = migrate([folder])
    for each in found:
        each.path.write_bytes(each.after)
    return found


def comments(text: str) -> Counter[str]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    return Counter([each.string for each in tokens if each.type == tokenize.COMMENT])


def start(folder: Path) -> subprocess.Popen[str]:
    environ = {**os.environ, "PYTHONHASHSEED": "0"}  # the methods of a route are a set
    command = [sys.executable, "-W", "ignore", "-m", "tests.migrate.answers", str(folder)]
    return subprocess.Popen(command, cwd=ROOT, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def ended(process: subprocess.Popen[str]) -> list[tuple[str, int]]:
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 0, errors
    found = [(route, 429 if status == FORBIDDEN else status) for route, status in json.loads(output)]
    return [each for each in found if each[0] != "GET /nowhere"]  # no library but this one limits a 404


def test_every_library_has_five_applications() -> None:
    assert Counter(each.id.partition(":")[0] for each in applications()) == {page.stem: 5 for page in PAGES}
    assert len(PAGES) == 5


@pytest.mark.slow
@pytest.mark.parametrize("files", [*applications()])
def test_the_answers_stay_the_same(files: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("slowapi")
    theirs, ours = written(tmp_path / "theirs", files), written(tmp_path / "ours", files)
    found = migrated(ours)
    both = [start(folder) for folder in (theirs, ours)]
    expected, answers = map(ended, both)
    assert answers == expected
    assert {200, 429} <= {status for _, status in answers} <= {200, 401, 404, 405, 429}
    assert any(each.diff for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("files", [*applications()])
def test_nothing_is_lost_and_a_second_run_changes_nothing(files: dict[str, str], tmp_path: Path) -> None:
    folder = written(tmp_path / "ours", files)
    before = migrated(folder)
    for name, text in files.items():
        made = (folder / name).read_text(encoding="utf-8")
        ast.parse(made)
        assert not comments(text) - comments(made)
        assert not PEERS.search(re.sub(r"#.*", "", made)) or "# sluicegate:" in made or "BaseThrottle" in made
    left = [each.left for each in before if each.left]
    after = migrate([folder])
    assert [each.diff for each in after] == [""] * len(after)
    assert [each.left for each in after if each.left] == left


FLASK = """from flask_limiter import Limiter
from flask_limiter.util import get_remote_address

limiter = Limiter(get_remote_address)
"""
SLOWAPI = FLASK.replace("flask_limiter", "slowapi")
BLUEPRINT = f"{FLASK}limiter.limit('3/day')(shop)\n"
DEFAULTS = FLASK.replace("(get_remote_address)", "(get_remote_address, default_limits=['9/day'])")
DJANGO = "from django_ratelimit.decorators import ratelimit\n"
SOFT = f"{DJANGO}@ratelimit(key='ip', rate='5/m', block=False)\n"
PYRATE = "from fastapi_limiter.depends import RateLimiter\nfrom pyrate_limiter import Duration, Limiter, Rate\n"
FAST = f"{PYRATE}import fastapi as fa\napp = fa.FastAPI()\n"
RATES = "RateLimiter(Limiter(Rate(2, Duration.DAY)))"
FACTORY = f"{FLASK.partition('limiter =')[0]}def make():\n    return Limiter(get_remote_address)\n\n\n"
PAIR = FLASK.replace("limiter =", "limiter, db =").replace("address)", "address), SQLAlchemy()")
ANNOTATED = FLASK.replace("limiter =", "limiter: Limiter =")
SCOPED = "scope=lambda endpoint: request.host"
SENTENCE = "a sentence for the client"
HEADERS = [each.format("settings.RATELIMIT_ENABLE") for each in ("if {}", "while {}", "with {}", "def f(x={})")]
HANDLER = "def slow(breach):\n    return str(breach.limit.limit)"


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        (FLASK, "limiter = RateLimiter(key='ip')".replace("'", '"')),
        (
            f"{FLASK}@limiter.limit('5/hour', cost=lambda: 2)\ndef view(): ...",
            "@limit('5/hour', cost=lambda request: 2)",
        ),
        # A name that the file has for something else.
        (f"{FLASK}limit = 5\nlimiter.limit('5/hour')(view)", "import RateLimiter, limit as sluicegate_limit"),
        (f"{FLASK}def view(limit): ...\nlimiter.limit('5/hour')(view)", "import RateLimiter, limit\n"),
        (f"{FLASK}def make(limit):\n    limiter.limit('5/hour')(view)", "sluicegate_limit('5/hour')(view)"),
        # An empty block.
        (
            "import slowapi.middleware as s\nif x:\n    # it\n    app.add_middleware(s.SlowAPIMiddleware)",
            "if x:\n    # it\n    pass",
        ),
        (
            "from slowapi.middleware import SlowAPIMiddleware\nif x: app.add_middleware(SlowAPIMiddleware)",
            "if x: pass",
        ),
        # An older form.
        (
            "from flask_limiter import Limiter\nlimiter = Limiter(app, key_func=user, storage_uri=URL)",
            "RateLimiter(app, key=lambda request: user(), store=URL)",
        ),
        # The letter is what django-ratelimit reads.
        (f"{DJANGO}@ratelimit(key='ip', rate='10/month')\ndef view(request): ...", '@limit("10/m", key="ip")'),
        (f"{DJANGO}@ratelimit(key='ip', rate='10/5m')\ndef view(request): ...", "@limit('10/5m', key=\"ip\")"),
        (f"{DJANGO}ratelimit(key='ip', rate='1/m', method='GET')(Page.as_view())", "methods=['GET'])(Page.as_view())"),
        (f"{FAST}slow = RateLimiter(Limiter(Rate(2, Duration.DAY * 7)))", '"2 per 7 days", key="ip", scope="slow")'),
        (
            "import django_ratelimit as d\nd.UNSAFE\nSLUICEGATE = {}\nRATELIMIT_ENABLE = False",
            'SLUICEGATE = {**globals().get("SLUICEGATE", {}), "ENABLED": False}',
        ),
        (f"{FLASK}app.config.from_mapping({{'RATELIMIT_ENABLED': False}})", '{"SLUICEGATE_ENABLED": False}'),
        # `exempt` frees what is below it, and a limit of the blueprint stays.
        (f"{FLASK}@limiter.exempt\n@app.get('/')\n@login\ndef view(): ...", "@app.get('/')\n@exempt\n@login"),
        (f"{FLASK}@app.get('/')\n@login\n@limiter.exempt\ndef view(): ...", "@login\n@exempt\ndef"),
        # The default here, and the key in front as in the older forms.
        (FLASK.replace("address)", "address, in_memory_fallback_enabled=ON)"), 'RateLimiter(key="ip")'),
        (f"{FLASK}limiter.limit('5/day', user)(view)", "limit('5/day', key=lambda request: user())(view)"),
        # What nothing uses, also where it is alone in a block.
        (f"{FLASK}from flask_limiter import HEADERS, RequestLimit", 'RateLimiter(key="ip")'),
        (f"if TYPING:\n    from flask_limiter import RequestLimit\n{FLASK}", "if TYPING:\n    pass"),
        # What another function makes, or what stands beside something else.
        (f"{FACTORY.replace('flask_limiter', 'slowapi')}app.state.limiter = make()", "settings=make())"),
        (f"{ANNOTATED}@limiter.limit('5/hour')\ndef view(): ...", 'limiter: RateLimiter = RateLimiter(key="ip")'),
        (f"{ANNOTATED.replace('flask_limiter', 'slowapi')}app.state.limiter: object = limiter", "settings=limiter)"),
        (f"{DJANGO}RATELIMIT_ENABLE: bool = False", 'SLUICEGATE = {"ENABLED": False}'),
        # What counts together, outside a route.
        (
            f"{FAST}every = [Depends({RATES})]",
            'every = [Depends(RateLimit("2/day", key="ip", scope=\'every\'))]'.replace("'", '"'),
        ),
        (
            f"{FAST}@app.get('/', dependencies=[Depends({RATES})])\ndef view(): ...",
            '[Depends(RateLimit("2/day", key="ip"))',
        ),
        (f"{FAST}A = {RATES}", "app.add_middleware(RateLimitMiddleware)"),
        (
            "from fastapi_limiter.decorators import skip_limiter\n@skip_limiter\n@app.get('/')\ndef view(): ...",
            "@app.get('/')\n@exempt",
        ),
        (f"{DJANGO}MIDDLEWARE = () + MORE", '[*MIDDLEWARE, "sluicegate.django.RateLimitMiddleware"]'),
        (f"{FLASK}limiter.limit('5/day', exempt_when=lambda: a or b)(view)", "when=lambda request: not (a or b))"),
        # A constant of the application's own.
        (
            f"{DJANGO}a = settings.RATELIMIT_LOGIN\nratelimit(key='ip', rate='5/m')(view)",
            "a = settings.RATELIMIT_LOGIN",
        ),
        (
            f"{DJANGO}f = lambda g, r: '5/m'\nratelimit(key='ip', rate=f)(view)",
            "lambda request: f(None, request)",
        ),
        (
            f"{SLOWAPI}app.state.limiter = limiter\n@limiter.limit(rate)\ndef view(): ...\ndef rate(): ...",
            "@limit(lambda request: rate())",
        ),
        (SLOWAPI.replace(")", ", key_style='endpoint')\napp.get('/{id}')"), 'Settings(key="ip")'),
        (f"{SLOWAPI}Limiter(f)\ndef f(request=None): ...", "Settings(key=f)"),
        (f"{DJANGO}def f(g, r=None): ...\nratelimit(key=f, rate='5/m')(view)", "key=lambda request: f(None, request))"),
    ],
)
def test_what_is_rewritten(before: str, expected: str, tmp_path: Path) -> None:
    [found] = migrated(written(tmp_path / "one", {"app.py": before, "views.py": "def view(): ..."}))
    made = found.after.decode()
    assert expected in made
    assert not PEERS.search(made) or "UNSAFE" in made
    assert found.left == []


@pytest.mark.parametrize(
    ("before", "kept", "note"),
    [
        (f"{FLASK}def view():\n    with limiter.limit('5/hour'): ...", "with limiter.limit('5/hour')", "write charge("),
        (f"{FLASK}limiter.limit(*quotas)(view)", "limiter.limit(*quotas)", "cannot be read"),
        (f"{FLASK}@limiter.request_filter\ndef free(): ...", "@limiter.request_filter", "here it is allow"),
        (f"{FLASK}@limiter.exempt(flags=SOME)\ndef view(): ...", "@limiter.exempt(flags=SOME)", "defaults_only"),
        (f"{FLASK}limiter.reset()", "limiter.reset()", "fresh_limits"),
        (f"{FLASK}app.config['RATELIMIT_STRATEGY'] = NAME", "'RATELIMIT_STRATEGY'] = NAME", "here it is algorithm"),
        (f"{DJANGO}@ratelimit(key='a.b', rate='5/m')\ndef view(request): ...", "@ratelimit(key='a.b'", "the function"),
        (f"{DJANGO}@ratelimit(key='ip', rate=(5, 60))\ndef view(request): ...", "@ratelimit(key='ip'", "as a quota"),
        (f"{DJANGO}@ratelimit(key='ip', rate='0/s')\ndef view(request): ...", "@ratelimit(key='ip'", "setting deny"),
        (f"{DJANGO}@ratelimit(key='ip', rate='5/m', block=B)\ndef view(r): ...", "block=B", "no literal"),
        (f"{DJANGO}@ratelimit(key=lambda g, r: g, rate='5/m')\ndef view(r): ...", "lambda g, r: g", "the group"),
        (f"{DJANGO}ratelimit(key='ip')(view)", "ratelimit(key='ip')", "limits nothing"),
        (f"{DJANGO}ratelimit(key=K, rate='5/m')(view)", "ratelimit(key=K", "the function itself"),
        (f"{DJANGO}K = 'ip'\nratelimit(key=K, rate='5/m')(view)", "ratelimit(key=K", "the function itself"),
        (f"{DJANGO}ratelimit(key='ip', rate=settings.R)(view)", "limit(settings.R, ", "means the same here"),
        (f"{DJANGO}ratelimit(key='ip', rate=None)(view)", "ratelimit(key='ip', rate=None)", "as a quota"),
        (f"{DJANGO}K = 'ip'\nK = user\nratelimit(key=K, rate='5/m')(view)", "ratelimit(key=K", "the function itself"),
        (f"{DJANGO}def f(g, r): return RATES[g]\nratelimit(key='ip', rate=f)(view)", "ratelimit(", "the group"),
        (f"{DJANGO}ratelimit(key=lambda *a: a[1], rate='5/m')(view)", "ratelimit(key=lambda *a", "of the request"),
        # A lambda with a default, whose first argument may be no request.
        (f"{FLASK}limiter.limit('5/day', lambda h='X': by(h))(view)", "lambda h='X'", "of the request"),
        (f"{FLASK}limiter.limit('5/day', lambda *, h='X': h)(view)", "lambda *, h='X'", "of the request"),
        (f"{SLOWAPI}Limiter(lambda request, h='X': by(request, h))", "request, h='X'", "of the request"),
        (f"{DJANGO}ratelimit(key=lambda g, r, h='X': by(h), rate='5/m')(view)", "g, r, h='X'", "of the request"),
        (f"{DJANGO}f = lambda g, r: by(g)\nratelimit(key=f, rate='5/m')(view)", "ratelimit(key=f", "the group"),
        (f"{FAST}slow = RateLimiter(Limiter(RATE))", "Limiter(RATE)", "rates as a quota"),
        # A function that gets something else here.
        (f"{SLOWAPI}def dyn(key='x'): ...\nlimiter.limit(dyn)(view)", "limiter.limit(dyn)", "the key of the client"),
        (f"{SLOWAPI}limiter.limit(lambda key: '5/day')(view)", "limiter.limit(lambda key", "the key of the client"),
        (f"{FLASK}limiter.shared_limit('5/day', {SCOPED})(view)", "limiter.shared_limit(", 'key=("ip", f)'),
        (f"{FLASK}limiter.limit('5/day', {SCOPED})(view)", "limiter.limit(", 'key=("ip", f)'),
        (
            f"{FLASK}limiter.limit('5/day', error_message=lambda: 'x')(view)",
            "limiter.limit(",
            "on_denied is a function",
        ),
        (
            FLASK.replace("(get_remote_address", "(user, default_limits=[rate]") + "def rate(): ...",
            "Limiter(user",
            "quota of a Rule",
        ),
        # What an error, a request and a limiter have.
        (f"{FLASK}@app.errorhandler(429)\n{HANDLER}", "breach.limit", "error.decision"),
        (
            f"{FLASK}@app.errorhandler(429)\ndef slow(breach):\n    return str(breach.limit)",
            "breach.limit",
            "error.decision",
        ),
        # A sentence for the client; of other errors it stays.
        (f"{FLASK}@app.errorhandler(429)\ndef slow(breach):\n    return breach.description", "breach.desc", SENTENCE),
        (f"{FLASK}def slow(e):\n    return e.description\nd.register_error_handler(429, slow)", "return e", SENTENCE),
        (
            f"{SLOWAPI}@app.exception_handler(RateLimitExceeded)\nasync def slow(r, e):\n  e.detail",
            "e.detail",
            SENTENCE,
        ),
        (
            f"{SLOWAPI}FastAPI(exception_handlers={{s.RateLimitExceeded: s}})\ndef s(r, e):\n  e.detail",
            "e.de",
            SENTENCE,
        ),
        (f"{SLOWAPI}try: pass\nexcept (RateLimitExceeded, KeyError) as e:\n  e.detail", "e.detail", SENTENCE),
        (f"{FLASK}@app.errorhandler(404)\n{HANDLER}\nlimiter.reset()", "limiter.reset()", "fresh_limits"),
        (f"{SLOWAPI}async def slow(request, exc):\n    return exc.limit", "exc.limit", "error.decision"),
        (f"{SLOWAPI}def view(request):\n    x = request.state.view_rate_limit", "view_rate_limit", "decision()"),
        (f"{FLASK}def view():\n    return get_remote_address()", "get_remote_address()", "request.remote_addr"),
        (f"{FLASK}limiter.limit('5/day', lambda: get_remote_address())(view)", "limit('5/day'", "request.remote_addr"),
        (f"{FLASK}limiter.enabled = False", "limiter.enabled", "limits_off"),
        (f"{FLASK}limiter.current_limit", "limiter.current_limit", "decision()"),
        (f"{FLASK}limiter.identify_request", "limiter.identify_request", 'see identify_request under "From another'),
        # What a limit writes, where it is not seen on what.
        (f"{SOFT}def view(r): ...\ndef by(x): return x.limited", "def by(x): return x.limited", "would_refuse"),
        (f"{SOFT}def view(r): ...\ndef by(x): return vars(x)['limited']", "['limited']", "would_refuse"),
        (f"{SOFT}def view(r): return r.limited", "@limit", "would_refuse"),
        (f"{SOFT}def get(self, r): return getattr(r, 'limited', 0)", "@limit", "would_refuse"),
        # What imports cannot say, and settings that are not seen whole.
        ("from flask_limiter import *\nlimiter = Limiter(f)", "import *", "each name by itself"),
        ("from slowapi.util import *", "import *", "each name by itself"),
        ("from flask_limiter import *\nRATELIMIT_DEFAULT = '4/day'", "import *", "each name by itself"),
        (
            f"{FLASK}app.config.setdefault('RATELIMIT_DEFAULT', 1)",
            "setdefault('RATELIMIT_DEFAULT', 1)",
            "default_limits",
        ),
        (f"{FLASK}app.config[f'RATELIMIT_{{name}}'] = 1", "RATELIMIT_{name}", 'under "From another'),
        (f"{SLOWAPI}os.environ['RATELIMIT_ENABLED'] = '0'", "'RATELIMIT_ENABLED'", "here it is enabled"),
        (f"{FLASK}app.config['A'] = app.config['RATELIMIT_ENABLED'] = 0", "'RATELIMIT_ENABLED'", "here it is enabled"),
        (f"{DJANGO}on = settings.RATELIMIT_ENABLE", "on = settings.RATELIMIT_ENABLE", "here it is enabled"),
        (f"{FLASK}app.config.update(RATELIMIT_META=1)", "RATELIMIT_META=1", "ban"),
        *[(f"{DJANGO}{start}: pass", start, "here it is enabled") for start in HEADERS],
        (f"{DJANGO}OFF = RATELIMIT_ENABLE = False", "OFF = RATELIMIT_ENABLE = False", "here it is enabled"),
        # What counts together, and no name says where.
        (f"{FAST}app.include_router(api, dependencies=[{RATES}])", "include_router", "give it a scope"),
        (f"{FAST}A = [{RATES}, {RATES}]", "A = [RateLimit(", "give it a scope"),
        (f"{FAST}def make(): return 1\nmade = [make(), a.append({RATES})]\na.append({RATES})", "a.append(", "a scope"),
        # An application that is not found.
        (f"{SLOWAPI}@limiter.limit('5/day')\ndef view(): ...", "@limit('5/day')", "add the middleware"),
        (
            f"{SLOWAPI}app.state.limiter = a = limiter\nlimiter.limit('5/day')(view)",
            "limit('5/day')",
            "add the middleware",
        ),
        (
            f"{SLOWAPI}s = app.state\ns.limiter = limiter\nlimiter.limit('5/day')(view)",
            "limit('5/day')",
            "add the middle",
        ),
        (SLOWAPI.replace("s)", "s, default_limits=['9/day'])"), "limiter = Settings(", "add the middleware"),
        (f"{PYRATE}A = {RATES}", "A = RateLimit(", "add the middleware"),
        # What is not called, and what an unknown owner has.
        (f"{FLASK}only = partial(limiter.limit, '5/day')", "partial(limiter.limit,", "not called"),
        (f"{DJANGO}only = partial(ratelimit, key='ip')", "partial(ratelimit,", "not called"),
        ("from flask_limiter import Limiter\nclass Mine(Limiter): ...", "class Mine(Limiter)", "not called"),
        (f"{FLASK}@mine.limit('5/day')\ndef view(): ...", "@mine.limit(", "what its owner is"),
        (
            f"{FACTORY}limiter = make()\n@limiter.limit('5/hour')\ndef view(): ...",
            "@limiter.limit",
            "what its owner is",
        ),
        (f"{FACTORY}app.limiter = make()\napp.limiter.limit('5/day')(view)", "app.limiter.limit(", "what its owner is"),
        (f"{PAIR}@limiter.limit('5/hour')\ndef view(): ...", "@limiter.limit", "what its owner is"),
        (f"{FLASK}class Page(View):\n    decorators = [x.limit('5/day')]", "[x.limit('5/day')]", "what its owner is"),
        (
            f"{FLASK}class Page(View):\n    decorators = [\n        f(), x.limit('5/day')]",
            "decorators = [",
            "what its own",
        ),
        (f"{FLASK}getattr(limiter, 'limit')('5/day')(view)", "getattr(limiter, 'limit')", "what its owner is"),
        (f"{FLASK}@mine.exempt\ndef view(): ...", "@mine.exempt", "what its owner is"),
        # What is written in another way, and limits something else.
        (SLOWAPI.replace("get_remote_address", "get_ipaddr"), 'Settings(key="ip")', "set trusted_proxies"),
        (f"{SLOWAPI}app.get('/{{id}}')", "", "value of a path parameter"),
        (
            f"{DEFAULTS}@limiter.limit('5/day', methods=['POST'])\ndef view(): ...",
            "methods=['POST']",
            "the other methods",
        ),
        (BLUEPRINT, "limit('3/day')(shop)", "in a blueprint both hold"),
        (
            f"{DJANGO}ratelimit(group='a', key='ip', rate='5/m')(f)\nratelimit(group='a', key='ip', rate='9/m')(view)",
            "limit('9/m', scope",
            "give this one another scope",
        ),
        (
            FLASK.replace("address)", "address, on_breach=lambda breach:\n  None)"),
            'RateLimiter(key="ip")',
            "on_breach=lambda breach: None is left out: here it is on_denied",
        ),
        ("from slowapi import _rate_limit_exceeded_handler as h\nh(request, error)", "h(request, error)", "answers"),
        (f"{DJANGO}from django_ratelimit.core import get_usage\nget_usage(r)", "get_usage(r)", "write charge("),
    ],
)
def test_what_is_left_has_a_comment(before: str, kept: str, note: str, tmp_path: Path) -> None:
    folder = written(tmp_path / "one", {"app.py": before, "views.py": "def view(): ..."})
    [found] = migrated(folder)
    [(line, text, _)] = found.left
    lines = found.after.decode().splitlines()
    assert kept in lines[line]  # the line below the comment; lines are counted from 1
    assert note in text
    assert [each.diff for each in migrate([folder])] == [""]


@pytest.mark.parametrize(
    ("there", "here"),
    [
        ("@shop.get('/')\n@limiter.exempt\ndef status(): ...", "@shop.get('/')\n@exempt(defaults_only=True)\ndef"),
        (
            "shop.register_blueprint(inner)\n@limiter.exempt\n@inner.get('/')\ndef status(): ...",
            "@inner.get('/')\n@exempt(defaults_only=True)\ndef",
        ),
        ("@app.get('/')\n@limiter.exempt\ndef shop(): ...", "@app.get('/')\n@exempt\ndef"),
        ("@app.get('/')\n@limiter.exempt\ndef status(): ...", "@app.get('/')\n@exempt\ndef"),
    ],
)
def test_the_limit_of_a_blueprint_holds_in_an_exempt_view(there: str, here: str, tmp_path: Path) -> None:
    [found] = migrated(written(tmp_path / "one", {"app.py": f"{BLUEPRINT}{there}"}))
    assert here in found.after.decode()
    assert not any([each.needed for each in found.left])


def test_a_call_that_exempts_says_what_the_view_of_a_blueprint_needs(tmp_path: Path) -> None:
    [found] = migrated(written(tmp_path / "one", {"app.py": f"{BLUEPRINT}def status(): ...\nlimiter.exempt(status)"}))
    assert "give exempt defaults_only=True" in found.left[-1].text


def test_each_option_that_is_left_out_has_a_comment_with_its_value(tmp_path: Path) -> None:
    before = FLASK.replace("address)", "address, storage_options={'a': 1}, default_limits_exempt_when=is_free)")
    [found] = migrated(written(tmp_path / "one", {"app.py": before}))
    names = [text.partition(" is left out")[0] for _, text, needed in found.left if not needed]
    assert names == ["storage_options={'a': 1}", "default_limits_exempt_when=is_free"]


def test_a_handler_in_a_file_of_its_own(tmp_path: Path) -> None:
    files = {"app.py": FLASK, "errors.py": f"@app.errorhandler(429)\n{HANDLER}"}
    found = migrated(written(tmp_path / "one", files))
    assert [each.path.name for each in found if each.left] == ["errors.py"]


def test_a_value_is_no_function_of_another_file(tmp_path: Path) -> None:
    files = {"app.py": f"{FLASK}slow = '5/day'\nlimiter.limit(slow)(view)", "rates.py": "def slow(): ..."}
    [found] = migrated(written(tmp_path / "one", files))
    assert "limit(slow)(view)" in found.after.decode()


@pytest.mark.parametrize(
    ("limiter", "expected"),
    [
        (
            "from slowapi.util import get_remote_address as ip\nlimiter = Limiter(ip, default_limits=['5/day'])",
            'key="ip")',
        ),
        ("limiter = Limiter(user, default_limits=['5/day'])\ndef user(request): ...", "key=user)"),
        ("limiter = Limiter(lambda request: 1, default_limits=['5/day'])", "key=lambda request: 1)"),
        ("limiter = Limiter(user)", "scope='all')(view)"),
    ],
)
def test_a_shared_limit_has_the_key_of_its_limiter(limiter: str, expected: str, tmp_path: Path) -> None:
    shared = "limiter.shared_limit('5/day', 'all')(view)"
    before = f"from slowapi import Limiter\n{limiter}\n{shared}"
    [found] = migrated(written(tmp_path / "one", {"app.py": before}))
    assert expected in found.after.decode().splitlines()[-1]


def test_a_shared_limit_stays_where_the_key_is_not_known(tmp_path: Path) -> None:
    before = FLASK.replace("(get_remote_address)", "(user, default_limits=['5/day'])")
    shared = "from app import limiter\nlimiter.shared_limit('5/day', 'all')(view)"
    found = migrated(written(tmp_path / "one", {"app.py": before, "shop.py": shared}))
    assert [place.text for each in found for place in each.left] == [
        "give it the key of the limiter, without the view: views of one scope share a budget"
    ]


@pytest.mark.parametrize(
    "text",
    [
        b"import flask_limiter\nprint 'old'",
        b"import slowapi\nx = '\xff'",
        b"import slowapi\n\0",
        b"# coding: no-such-coding\nimport slowapi",
        b"import slowapi\nx = a" + b".b" * 990,
        b"import slowapi\nx = " + b"1+" * 5_000 + b"1",
        b"import slowapi\nx = " + b"-" * 100_000 + b"1",
    ],
    ids=lambda text: str(text[:30]),
)
def test_a_file_that_is_no_python_stays_and_the_others_change(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "old.py").write_bytes(text)
    (tmp_path / "new.py").write_text(FLASK)
    new, old = migrated(tmp_path)
    assert (old.after, old.diff) == (text, "")
    assert [place.text.partition(":")[0] for place in old.left] == ["it cannot be rewritten"]
    assert "RateLimiter(" in new.diff


def test_what_is_no_limiter_of_the_library_stays(tmp_path: Path) -> None:
    foreign = "from other import o, limiter\n\no.limiter.limit(5)\nself.limiter.limit(5)\nlimiter.limit(5)\n"
    files = {
        "limiting.py": FLASK,
        "app.py": foreign,
        "shop.py": "import limiting\nlimiting.limiter.limit('5/day')(view)",
    }
    found = migrated(written(tmp_path / "one", files))
    assert [each.path.name for each in found if each.diff] == ["limiting.py", "shop.py"]


@pytest.mark.slow
@pytest.mark.parametrize("files", [*applications()])
def test_a_run_that_ended_in_the_middle_is_finished_by_another_one(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = written(tmp_path / "whole", files)
    found = [each for each in migrated(whole) if each.diff]
    replace = Path.replace
    for number in range(len(found)):
        folder = written(tmp_path / str(number), files)
        done: list[Path] = []

        def some(new: Path, path: Path, done: list[Path] = done, most: int = number) -> None:
            if len(done) == most:
                raise OSError(errno.ENOSPC, "No space left")
            done.append(replace(new, path))

        with monkeypatch.context() as patch:
            patch.setattr(Path, "replace", some)
            with pytest.raises(OSError, match="No space left"):
                write(migrate([folder]))
        assert sorted(each.name for each in folder.iterdir()) == sorted(files)
        write(migrate([folder]))
        assert [(folder / name).read_text() for name in files] == [(whole / name).read_text() for name in files]


def test_without_room_the_other_files_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = written(tmp_path / "one", {"app.py": FLASK, "other.py": FLASK})
    (folder / ".other.py.sluicegate").mkdir()
    with pytest.raises(OSError, match=r"other\.py"):
        write(migrate([folder]))
    assert (folder / "other.py").read_text() == FLASK
    assert "RateLimiter(" in (folder / "app.py").read_text()
    result = CliRunner().invoke(sluicegate, ["migrate", str(folder), "--write"])
    assert result.exit_code == 1
    assert "Could not open file" in result.stderr


def test_a_file_keeps_its_mode_and_its_link(tmp_path: Path) -> None:
    folder = written(tmp_path / "one", {"app.py": FLASK})
    (folder / "app.py").chmod(0o754)
    (tmp_path / "link.py").symlink_to(folder / "app.py")
    write(migrate([tmp_path / "link.py"]))
    assert (tmp_path / "link.py").is_symlink()
    assert "RateLimiter(" in (folder / "app.py").read_text()
    assert (folder / "app.py").stat().st_mode & 0o777 == 0o754


def test_bytes_that_are_not_about_limits_stay(tmp_path: Path) -> None:
    before = (
        "# -*- coding: latin-1 -*-\r\nfrom slowapi.errors import RateLimitExceeded\r\nword = 'é'\t\r\nRateLimitExceeded"
    )
    (tmp_path / "app.py").write_bytes(before.encode("latin-1"))
    [found] = migrate([tmp_path])
    after = before.replace("from slowapi.errors import", "from sluicegate import")
    assert found.after == after.encode("latin-1")
    assert "é" in found.diff


def test_a_folder_is_searched_without_the_packages_in_it(tmp_path: Path) -> None:
    for folder in (".venv", ".git", "node_modules", "site-packages", "__pycache__", "shop"):
        written(tmp_path / folder, {"limits.py": FLASK, "notes.txt": FLASK, "other.py": "print(1)"})
    (tmp_path / "shop" / "loop").symlink_to(tmp_path)
    (tmp_path / "shop" / "again.py").symlink_to("limits.py")
    (tmp_path / "shop" / "gone.py").symlink_to("gone.py")
    assert [each.path for each in migrate([tmp_path])] == [tmp_path / "shop" / "limits.py"]


@pytest.mark.parametrize("write", [False, True])
def test_the_command(write: bool, tmp_path: Path) -> None:
    file = written(tmp_path / "one", {"app.py": f"{FLASK}limiter.reset()\n"}) / "app.py"
    arguments = ["migrate", str(file), *(["--write"] if write else [])]
    result = CliRunner().invoke(sluicegate, arguments)
    assert result.exit_code == 1  # a place is needed
    assert ("+limiter = RateLimiter(" in result.stdout) is not write
    assert ("RateLimiter(" in file.read_text()) is write
    assert f"{file}:4: in tests use the fixture" in result.stderr
    assert "Before the application starts:" in result.stderr
    assert "What differs:" not in result.stderr
    assert "1 place left for you" in result.stderr
    found = json.loads(CliRunner().invoke(sluicegate, [*arguments, "--json"]).stdout)
    assert [(each["line"], each["needed"]) for each in found["left"]] == [(4, True)]
    assert len(found["changed"]) == (0 if write else 1)


def test_the_report_has_what_only_differs_apart(tmp_path: Path) -> None:
    before = FLASK.replace("address)", "address, retry_after='delta-seconds')") + "limiter.reset()\n"
    folder = written(tmp_path / "one", {"app.py": before})
    result = CliRunner().invoke(sluicegate, ["migrate", str(folder)])
    assert result.exit_code == 1
    needed, differs = result.stderr.split("What differs:\n")
    assert needed.startswith(f"Before the application starts:\n{folder}/app.py:5: in tests")
    assert differs.startswith(f"{folder}/app.py:3: retry_after='delta-seconds' is left out: ")


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ("", 0),
        ("\nlimiter.limit('5/day')(app)", 0),
        ("\nprint(limiter.current_limit)", 1),
        ("# sluicegate: note: a run before\n", 0),
        ("# sluicegate: a run before\n", 1),
    ],
)
def test_the_exit_status_says_whether_the_application_starts(more: str, status: int, tmp_path: Path) -> None:
    folder = written(tmp_path / "one", {"app.py": f"{FLASK}{more}"})
    assert CliRunner().invoke(sluicegate, ["migrate", str(folder)]).exit_code == status


def test_the_command_names_its_extra(tmp_path: Path) -> None:
    blocked = "import sys; sys.modules['libcst'] = None; from sluicegate.cli import main; main()"
    command = [sys.executable, "-c", blocked, "migrate", str(tmp_path)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert "pip install 'sluicegate[migrate]'" in result.stderr
