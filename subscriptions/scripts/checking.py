"""Refusing what is no JavaScript when it is saved, with the line."""

import select
import threading
from typing import Final

from django.core.exceptions import ValidationError

from subscriptions.scripts.jobs import Failed, Job, Lost, NotRun, Result
from subscriptions.scripts.limits import MAX_SOURCE_BYTES
from subscriptions.scripts.runner import ScriptRunner

_one_at_a_time: Final = threading.Lock()


def check_script(source: str) -> None:
    """Compile a script in a process of its own, and run nothing of it.

    Raises:
        ValidationError: it is too large or no JavaScript; the text says what is wrong and in which line.

    """
    if not source.strip():
        return
    _check_size(source)
    match _compiled(source):
        case Failed(reason):
            raise _refused(f"The script does not compile: {reason}.")
        case Lost() | NotRun():
            raise _refused("The script could not be checked now; try again in a moment.")


def _check_size(source: str) -> None:
    try:
        size = len(source.encode())
    except UnicodeEncodeError:
        raise _refused("The script has half of a surrogate pair; write it as an escape, such as \\ud83d.") from None
    if size > MAX_SOURCE_BYTES:
        raise _refused(f"A script has at most {MAX_SOURCE_BYTES // 1024} KiB; this one has {size:,} bytes.")
    if "\0" in source:
        raise _refused("The script has a NUL character; write it as an escape: \\0.")


def _compiled(source: str) -> Result:
    with _one_at_a_time:
        runner = ScriptRunner(processes=1)
        try:
            runner.run(None, Job(source, only_check=True))
            return _result_of(runner)
        finally:
            runner.close()


def _result_of(runner: ScriptRunner) -> Result:
    poll = select.poll()
    poll.register(runner.fileno(), select.POLLIN)
    while not (done := runner.finished()):
        poll.poll((runner.patience() or 0.0) * 1000)
    ((_, result),) = done
    return result


def _refused(text: str) -> ValidationError:
    return ValidationError(text, code="script")
