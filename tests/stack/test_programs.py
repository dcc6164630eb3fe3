"""Programs that others start by name, in processes of their own: each loads in a fresh interpreter."""

import os
import subprocess
import sys

import pytest

PROGRAMS = (
    "analytics.guard",
    "analytics.pipeline.__main__",
    "benchmarks.growing",
    "benchmarks.remembering",
    "benchmarks.subscribing",
    "broker_project.flowerconfig",
    "broker_project.server.rsgi",
    "broker_project.stack.demo.mailbox_reader",
    "broker_project.stack.demo.receiver",
    "broker_project.stack.demo.summarize_demo",
    "broker_project.stack.set_up",
    "subscriptions.scripting.child",
    "tests.support.faults.summarize",
)


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_loads_in_a_fresh_interpreter(program: str) -> None:
    variables = {**os.environ, "BROKER_WEB_THREADS": "1"}
    command = (sys.executable, "-c", f"import {program}")
    loaded = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (loaded.returncode, loaded.stderr) == (0, "")
