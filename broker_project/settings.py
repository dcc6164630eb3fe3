"""Settings, from environment variables only. The README documents them."""

from pathlib import Path
from typing import Any

from celery.schedules import crontab
from django.core.exceptions import ImproperlyConfigured
from django.templatetags.static import static
from kombu import Queue

from analytics.alert_rules import AlertThresholds
from broker_project.core.cores import usable_cores
from broker_project.core.egress import EgressPolicy
from broker_project.environment import (
    ANYTHING,
    COLOR,
    HOST_NAME,
    JAVA_MEMORY,
    MAX_DAYS,
    ORIGIN,
    PERCENT,
    SPARK_MASTER_URL,
    database,
    env,
    hosts_of,
    lake,
    listed,
    matching,
    networks,
    number,
    one_of,
    redis_address,
    secret,
    switch,
    text,
    web_address,
)
from broker_project.logging import logging_settings
from broker_project.stack.variables import set_development_defaults

set_development_defaults()
BASE_DIR = Path(__file__).resolve().parent.parent

DEVELOPMENT = switch("BROKER_DEVELOPMENT")
"""True only in the embedded stack on loopback, which has no TLS."""
SECRET_KEY = text("BROKER_SECRET_KEY") if DEVELOPMENT else secret("BROKER_SECRET_KEY")
SECRET_KEY_FALLBACKS = listed("BROKER_SECRET_KEY_FALLBACKS", ANYTHING)
"""Former secret keys, newest first. Values that were encrypted or signed with them stay valid."""
PUBLIC_URL = web_address("BROKER_PUBLIC_URL", default="http://127.0.0.1:8000" if DEVELOPMENT else "")
"""Base of callback URLs. Empty: callbacks are not available."""
FLOWER_URL = web_address("BROKER_FLOWER_URL", default="")
"""Address of Flower, to which the dashboard links. Empty: it does not."""
PORTAL_ORIGINS = listed("BROKER_PORTAL_ORIGINS", ORIGIN)
"""Origins whose pages may show the portal in a frame."""
PORTAL_COLOR = matching("BROKER_PORTAL_COLOR", COLOR, default="#1d4ed8")
"""Colour of the portal's head and buttons."""
PORTAL_LOGO = web_address("BROKER_PORTAL_LOGO", default="")
"""Address of the image in the portal's head. Empty: no image."""
PROXIES = networks("BROKER_PROXIES", default="" if DEVELOPMENT else "127.0.0.1,::1")
"""Proxies whose `X-Forwarded-For` and `X-Forwarded-Proto` are trusted."""
ALLOWED_HOSTS = [*listed("BROKER_ALLOWED_HOSTS", HOST_NAME, ["localhost", "127.0.0.1"]), *hosts_of(PUBLIC_URL)]

WORKER_NAME = env.str("BROKER_WORKER_NAME", default="")
"""Name of this worker process in its leases. A restart under the same name takes them over at once."""

DEBUG = False
ROOT_URLCONF = "broker_project.urls"
WSGI_APPLICATION = "broker_project.wsgi.application"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
TIME_ZONE = "UTC"
USE_I18N = False
FORMAT_MODULE_PATH = "broker_project.formats"

INSTALLED_APPS = [
    "unfold",
    "unfold.contrib.filters",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "axes",
    "subscriptions",
    "broker_project.accounts",
    "delivery",
    "analytics",
    "django_celery_beat",
    "broker_project.portal",
    "broker_project",
]

API_MIDDLEWARE = [
    "broker_project.server.browser_headers.browser_headers",
    "broker_project.server.request_head.check_host",
    "subscriptions.api.authentication.rate_limit_headers",
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]
MIDDLEWARE = [
    *API_MIDDLEWARE,
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "broker_project.accounts.sessions.guarded",
    "axes.middleware.AxesMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "broker_project" / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                *(f"django.contrib.{one}.context_processors.{one}" for one in ("auth", "messages")),
            ]
        },
    }
]

STATEMENT_TIMEOUT_MS = 30_000
"""Longer than every statement of the broker. It keeps a hung publisher from holding up lines."""

DATABASES: dict[str, dict[str, Any]] = {
    "default": {**database("DATABASE_URL"), "ENGINE": "broker_project.postgresql", "CONN_HEALTH_CHECKS": True}
}
_own_options: dict[str, Any] = DATABASES["default"].get("OPTIONS", {})  # libpq's, from the address
DATABASES["default"]["OPTIONS"] = (
    # A server that has vanished without a word is noticed in 10 s, not in a quarter of an hour.
    {"connect_timeout": 5, "tcp_user_timeout": 10_000, "keepalives_idle": 5, "keepalives_interval": 2}
    | _own_options
    | {
        "pool": {
            "min_size": 2,
            "max_size": number("BROKER_DATABASE_POOL", minimum=2, default=20, maximum=1000),
            "timeout": 3,
            # Threads then retry at once. The pool's own retries wait longer each time.
            "reconnect_timeout": 1,
        },
        "options": f"{_own_options.get('options', '')} -c statement_timeout={STATEMENT_TIMEOUT_MS}"
        f" -c idle_in_transaction_session_timeout={STATEMENT_TIMEOUT_MS} -c jit=off -c timezone=UTC"
        # Only hot statements are prepared. Planning one again for its arguments would cost more than running it.
        " -c plan_cache_mode=force_generic_plan"
        # Lines read the first rows in the order of an index. A bitmap scan would read the index to its end, and a scan
        # of a table that was empty when the plan was made would read all that waits.
        " -c enable_bitmapscan=off -c enable_seqscan=off -c random_page_cost=1.1",
    }
)

REDIS_URL = redis_address("REDIS_URL")
REDIS_TIMEOUT_SECONDS = 0.2
"""How long a web process waits for Redis to take a wake-up."""

CELERY_BROKER_URL = REDIS_URL
QUEUE_SENDERS = number("BROKER_QUEUE_SENDERS", minimum=1, default=5, maximum=1000)
"""QUEUE senders. Each has a Celery queue; a message goes to sender `message id % QUEUE_SENDERS` (contract 6.2)."""
SENDER_QUEUES = tuple(f"queue.{sender}" for sender in range(QUEUE_SENDERS))
QUEUES = ("topic", "retry", *SENDER_QUEUES, "callbacks", "volatile", "maintenance", "analytics")
CELERY_TASK_QUEUES = [Queue(name, routing_key=name) for name in QUEUES]
CELERY_TASK_ROUTES = {"analytics.*": {"queue": "analytics"}}
CELERY_TASK_DEFAULT_EXCHANGE = "broker"
CELERY_TASK_DEFAULT_QUEUE = "maintenance"
CELERY_TASK_CREATE_MISSING_QUEUES = False
CELERY_TASK_IGNORE_RESULT = True
CELERY_RESULT_EXPIRES = None
"""No results are stored, so there is nothing to expire."""
CELERY_TASK_ACKS_LATE = False
CELERY_WORKER_SEND_TASK_EVENTS = True
CELERY_WORKER_POOL = "threads"
"""Others are refused. Prefork, Celery's default, closes the database's pool around every task, and its children neither
share an event loop nor stop cleanly."""
CELERY_WORKER_CONCURRENCY = 8
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_DISABLE_PREFETCH = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BROKER_CONNECTION_MAX_RETRIES = None
CELERY_BROKER_CHANNEL_ERROR_RETRY = True
"""Redis may answer with errors, such as a replica that is read-only: then workers go on with what PostgreSQL has."""
CELERY_BROKER_POOL_LIMIT = 20
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "max_connections": 50,
    "socket_keepalive": True,
    "health_check_interval": 10,
}
CELERY_TIMEZONE = "UTC"
CELERY_BEAT_SCHEDULER = "broker_project.beat:Schedule"
CELERY_BEAT_SCHEDULE = {
    "do chores": {
        "task": "delivery.chores",
        "schedule": 30.0,
        "options": {"expire_seconds": 30},
        "description": "Wakes lines that have due work and no worker; runs due delays, expiry, announcements, replays"
        " and backfills. Workers do this every second.",
    },
    "maintain tables": {
        "task": "delivery.maintain",
        "schedule": 3600.0,
        "description": "Creates partitions ahead and drops expired ones. Workers do this too.",
    },
    "forget logins": {
        "task": "accounts.forget",
        "schedule": 600.0,
        "description": "Deletes expired login failures and sessions.",
    },
    "summarize closed hours": {
        "task": "analytics.summarize_hours",
        "schedule": crontab(minute="7"),
        "description": "Spark summarizes the past hours of today.",
    },
    "summarize closed days": {
        "task": "analytics.summarize_days",
        "schedule": crontab(minute="20", hour="0"),
        "description": "Spark summarizes days that no longer change. Retention waits for it.",
    },
}
"""Beat adds missing entries to the database, where admins can change them."""

MAX_BODY_BYTES = 1024 * 1024
MAX_BATCH_BYTES = 5 * 1024 * 1024
MAX_BATCH_ITEMS = 1000
MAX_DELIVERIES = number("BROKER_MAX_DELIVERIES", minimum=1, default=100_000, maximum=1_000_000)
"""Deliveries that one publish may become: more would take too long in one transaction, which others wait for."""
DATA_UPLOAD_MAX_MEMORY_SIZE = MAX_BATCH_BYTES
UPLOADS_BYTES = number("BROKER_UPLOADS_MB", minimum=16, default=64, maximum=100_000) * 1024 * 1024
"""Bytes of bodies over 64 KiB that a web process holds until they are answered: at least one batch of a caller without
a key, and one of each of two keys."""
UPLOAD_SECONDS = number("BROKER_UPLOAD_SECONDS", minimum=1, default=20, maximum=3600)
"""How long a body may take to arrive. A large body that keeps arriving has more time."""
REQUESTS_PER_MINUTE = number("BROKER_REQUESTS_PER_MINUTE", minimum=0, default=0, maximum=10_000_000)
"""Requests of an API key per web process, unless the key has its own limit. 0: unlimited."""
FAILURES_PER_MINUTE = number("BROKER_FAILURES_PER_MINUTE", minimum=0, default=600, maximum=10_000_000)
"""Requests of an address with a missing or wrong key, per web process, before they are refused unseen. Replies to
unknown callbacks have a limit of the same size. 0: unlimited."""
WEB_PROCESSES = number("BROKER_WEB_PROCESSES", minimum=1, default=max(1, usable_cores() // 2), maximum=1000)
"""Processes of the web server: half of the cores are for workers and PostgreSQL."""
WEB_THREADS = number("BROKER_WEB_THREADS", minimum=1, default=128, maximum=1000)
"""Concurrent requests of a web process. Most wait for the database, some for an endpoint or a mailbox."""
EGRESS_POLICY = EgressPolicy(networks("BROKER_ALLOWED_NETWORKS", default=""))
"""Where requests may be sent: to the internet, and to the networks named here."""
RETENTION_DAYS = number("BROKER_RETENTION_DAYS", minimum=1, default=14, maximum=MAX_DAYS)
"""How long messages, finished deliveries and attempts are kept. Messages of unfinished deliveries stay longer."""
QUEUE_MAX_IN_FLIGHT = number("BROKER_QUEUE_MAX_IN_FLIGHT", minimum=1, default=16, maximum=10_000)
"""Messages that each QUEUE sender has in flight at a time."""
VOLATILE_MAX_IN_FLIGHT = number("BROKER_VOLATILE_MAX_IN_FLIGHT", minimum=1, default=2000, maximum=100_000)
"""Volatile requests that each worker has in flight at a time. More are dropped."""
CALLBACK_DAYS = number("BROKER_CALLBACK_DAYS", minimum=1, default=14, maximum=MAX_DAYS)
"""How long a callback URL accepts a reply, and how long the reply is delivered."""
MAILBOX_DAYS = number("BROKER_MAILBOX_DAYS", minimum=1, default=4, maximum=MAX_DAYS)
"""How long a mailbox keeps an unread message."""
SYNC_SECONDS = number("BROKER_SYNC_SECONDS", minimum=1, default=10, maximum=3600)
"""Deadline of a SYNC call."""
IDEMPOTENCY_KEY_HOURS = number("BROKER_IDEMPOTENCY_KEY_HOURS", minimum=1, default=24, maximum=24 * MAX_DAYS)

LAKE = lake("BROKER_LAKE")
"""Where Spark stores its files: a path, or a URL that every executor can write to."""
SUMMARIES = switch("BROKER_SUMMARIES", default=bool(LAKE))
"""Whether summaries run on schedule. A day is then dropped only after it has been summarized."""
if SUMMARIES and not LAKE:
    raise ImproperlyConfigured("BROKER_SUMMARIES is on without BROKER_LAKE: set it to 0, or set BROKER_LAKE.")
SUMMARY_MINUTES = number("BROKER_SUMMARY_MINUTES", minimum=1, default=60, maximum=7 * 24 * 60)
"""How long a run may take before it is stopped."""
SPARK_MASTER = matching("BROKER_SPARK_MASTER", SPARK_MASTER_URL, default="local[1]")
SPARK_MEMORY = matching("BROKER_SPARK_MEMORY", JAVA_MEMORY, default="1g")
"""Memory of Spark's driver, which does all the work on one machine."""
SUMMARY_DAYS = number("BROKER_SUMMARY_DAYS", minimum=1, default=400, maximum=MAX_DAYS)
"""How long summaries, the files of the lake and records of runs are kept."""
OBJECTIVE = float(matching("BROKER_OBJECTIVE_PERCENT", PERCENT, default="99.9")) / 100
"""Share of deliveries that should succeed. The rest is the error budget."""

ALERT_THRESHOLDS = AlertThresholds(
    waiting_seconds=number("BROKER_ALERT_WAITING_SECONDS", minimum=1, default=300, maximum=7 * 24 * 3600),
    blocked_seconds=number("BROKER_ALERT_BLOCKED_SECONDS", minimum=1, default=60, maximum=7 * 24 * 3600),
    failed_percent=number("BROKER_ALERT_FAILED_PERCENT", minimum=0, default=5, maximum=100),
    growing_minutes=number("BROKER_ALERT_GROWING_MINUTES", minimum=1, default=10, maximum=24 * 60),
)
"""What needs attention, on the dashboard and as an alert."""

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": ["subscriptions.api.authentication.ApiKeyAuthentication"],
    "DEFAULT_PERMISSION_CLASSES": ["subscriptions.api.permissions.KeyPermission"],
    "DEFAULT_RENDERER_CLASSES": ["broker_project.core.api.bodies.JsonRenderer"],
    "DEFAULT_PARSER_CLASSES": ["broker_project.core.api.bodies.JsonParser"],
    "DEFAULT_SCHEMA_CLASS": "broker_project.core.api.openapi.ApiSchema",
    "DEFAULT_CONTENT_NEGOTIATION_CLASS": "broker_project.core.api.bodies.AlwaysJson",
    "EXCEPTION_HANDLER": "broker_project.core.api.problems.problem_response",
    "DEFAULT_METADATA_CLASS": None,
    "UNAUTHENTICATED_USER": None,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Broker",
    "DESCRIPTION": "Publish events; deliver them as webhooks to every subscriber in order (TOPIC), to one of several "
    "endpoints (QUEUE), or to an endpoint whose answer is the publisher's (SYNC).",
    "VERSION": "1",
    "OAS_VERSION": "3.1.0",
    "SERVE_INCLUDE_SCHEMA": False,
    "COMPONENT_SPLIT_REQUEST": True,
    "ENUM_NAME_OVERRIDES": {
        "EventKind": "subscriptions.models.EventKind",
        "KeyKind": "subscriptions.models.KeyKind",
        "Scope": "subscriptions.models.Scope",
        "Status": "subscriptions.models.Status",
        "Action": "subscriptions.retry_policies.Action",
        "DeliveryStatus": "delivery.statuses.DeliveryStatus",
        "CallbackState": "delivery.status.callback_status.CallbackState",
        "LineState": "delivery.status.line_status.LineState",
        "GroupState": "delivery.status.queue_status.GroupState",
        "RunKind": "analytics.models.RunKind",
        "RunState": "analytics.models.RunState",
        "WindowState": "analytics.models.WindowState",
    },
    "PATH_CONVERTER_OVERRIDES": {"message_id": {"type": "integer"}, "delivery_id": {"type": "integer"}},
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "broker_project.core.api.openapi.complete_document",
    ],
    "SERVE_PERMISSIONS": ["rest_framework.permissions.AllowAny"],
    "SERVE_AUTHENTICATION": [],
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "SORT_OPERATIONS": False,
    "SORT_OPERATION_PARAMETERS": False,
}

STATIC_URL = "static/"
LOGIN_REDIRECT_URL = "/admin/"
AUTHENTICATION_BACKENDS = [
    "axes.backends.AxesStandaloneBackend",
    "broker_project.accounts.sessions.SecondFactorBackend",
]
AXES_HANDLER = "broker_project.accounts.login_throttle.Throttle"
AXES_LOCKOUT_CALLABLE = "broker_project.accounts.views.locked_out"
AXES_RESET_COOL_OFF_ON_FAILURE_DURING_LOCKOUT = AXES_ENABLE_ADMIN = AXES_VERBOSE = False
SECOND_FACTOR_REQUIRED = one_of("BROKER_SECOND_FACTOR", ("optional", "required"), "optional") == "required"
"""Whether users without a second factor can only set one up."""
SESSION_COOKIE_AGE = 2 * 60 * 60
"""How long an idle session lasts."""
SESSION_MAX_SECONDS = 12 * 60 * 60
"""How long a session lasts at most."""
WHITENOISE_USE_FINDERS = True
"""Static files are served from the installed packages."""
WHITENOISE_ALLOW_ALL_ORIGINS = False
MESSAGE_STORAGE = "django.contrib.messages.storage.session.SessionStorage"
"""In the database, not in a cookie."""
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 12}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
UNFOLD = {
    "SITE_TITLE": "Broker",
    "SITE_HEADER": "Broker",
    "SITE_SYMBOL": "hub",
    "ENVIRONMENT": lambda _: ("UTC", "info"),
    "STYLES": [lambda _, name=name: static(f"broker_project/{name}.css") for name in ("admin", "copy", "timeline")],
    "SCRIPTS": [lambda _: static("broker_project/admin.js"), lambda _: static("broker_project/copy.js")],
    "DASHBOARD_CALLBACK": "analytics.admin.dashboard.dashboard",
    "SIDEBAR": {"show_search": True, "navigation": "broker_project.navigation.groups"},
    "ACCOUNT": {"navigation": "broker_project.navigation.account"},
}

SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE_SSL_REDIRECT = not DEVELOPMENT
SESSION_COOKIE_HTTPONLY = CSRF_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = "Lax"
CSRF_COOKIE_SAMESITE, CSRF_COOKIE_AGE = "Strict", None
# A cookie with this prefix no other host below the same domain can set.
SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = (
    name if DEVELOPMENT else f"__Host-{name}" for name in ("broker_session", "broker_csrf")
)
SECURE_HSTS_SECONDS = 0 if DEVELOPMENT else 31_536_000
SECURE_HSTS_INCLUDE_SUBDOMAINS = SECURE_HSTS_PRELOAD = not DEVELOPMENT
SECURE_REDIRECT_EXEMPT = [r"^livez$", r"^readyz$"]
X_FRAME_OPTIONS = "DENY"
PORTAL_COOKIE_NAME = "broker_portal" if DEVELOPMENT else "__Host-broker_portal"

LOGGING = logging_settings(
    log_format=one_of("BROKER_LOG_FORMAT", ("json", "console"), "json"),
    level=one_of("BROKER_LOG_LEVEL", ("DEBUG", "INFO", "WARNING", "ERROR"), "INFO"),
    logs_messages=switch("BROKER_LOG_MESSAGES"),
)
