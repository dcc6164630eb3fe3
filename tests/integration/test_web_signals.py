"""A web process that is told to stop more than once."""

import subprocess
import sys

TOLD_AGAIN = """
import asyncio, os, signal
from broker_project.server.rsgi import RsgiApplication
loop = asyncio.new_event_loop()
RsgiApplication().__rsgi_init__(loop)
loop.close()
for number in (signal.SIGTERM, signal.SIGINT):
    os.kill(os.getpid(), number)
print("it ends in its own time")
"""


def test_a_web_process_that_has_stopped_already_may_be_told_so_again() -> None:
    done = subprocess.run([sys.executable, "-c", TOLD_AGAIN], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (0, "it ends in its own time\n", False)
