"""The settings under plain `pytest`: on servers of its own, unless DATABASE_URL or REDIS_URL names one.

`./broker test` has started them by then, and sets DJANGO_SETTINGS_MODULE.
"""

import atexit
import os
from contextlib import ExitStack

from broker_project.stack.test_command import prepared

if os.environ.keys().isdisjoint({"DATABASE_URL", "REDIS_URL"}):
    _servers = ExitStack()
    os.environ.update(_servers.enter_context(prepared())[1])
    atexit.register(_servers.close)

from broker_project.settings import *  # noqa: F403 - they read the environment
