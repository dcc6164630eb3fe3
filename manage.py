#!/usr/bin/env python3
"""Django's command line."""

import os
import sys

from django.core.management import execute_from_command_line

from broker_project.environment import read_settings

if __name__ == "__main__":
    if sys.argv[1:2] == ["test"]:  # pytest starts what it needs, and has settings of its own
        os.execv(sys.executable, [sys.executable, "-m", "pytest", *sys.argv[2:]])  # noqa: S606 - no shell
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "broker_project.settings")
    read_settings()
    execute_from_command_line(sys.argv)
