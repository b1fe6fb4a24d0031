"""Settings of the board: an ordinary project, with SLUICEGATE at the end."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent

SECRET_KEY = os.environ.get("BOARD_SECRET_KEY", "for the example only")
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
ROOT_URLCONF = "board.urls"
WSGI_APPLICATION = "board.wsgi.application"
ASGI_APPLICATION = "board.asgi.application"

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "sluicegate.django",  # for its system checks; the limits need only the middleware
]

MIDDLEWARE = [
    "sluicegate.django.RateLimitMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
]

TEMPLATES = [{"BACKEND": "django.template.backends.django.DjangoTemplates", "DIRS": [BASE_DIR / "templates"]}]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("BOARD_DATABASE", BASE_DIR / "board.sqlite3"),
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
SESSION_ENGINE = "django.contrib.sessions.backends.signed_cookies"
USE_TZ = True

SLUICEGATE = {
    "STORE": os.environ.get("SLUICEGATE_STORE", "memory://"),
    "DEADLINE": float(os.environ.get("SLUICEGATE_DEADLINE", "0.1")),
    "DEFAULT_LIMITS": ["20/second", "1000/day"],
    "RULES": [{"name": "login", "quota": "5/minute", "key": "ip", "route": "login", "methods": ["POST"]}],
}
