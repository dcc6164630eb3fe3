#!/usr/bin/env python3
"""Django's command line, in the environment that `./broker manage` sets up."""

import os
import sys

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_project.settings")
    try:
        settings.LOGGING  # noqa: B018 - reads the settings, where Django itself would put off what is wrong with them
    except ImproperlyConfigured as problem:
        sys.exit(f"broker: {problem}")
    execute_from_command_line(sys.argv)
