"""Refusing what is no JavaScript when it is saved, with the line."""

from django.core.exceptions import ValidationError

from subscriptions.scripting.jobs import MAX_SOURCE_BYTES, Failed, Job, Lost, NotRun
from subscriptions.scripting.runner import run_once


def check_script(source: str) -> None:
    """Compile a script in a process of its own, and run nothing of it.

    Raises:
        ValidationError: it is too large or no JavaScript; the text says what is wrong and in which line.

    """
    if not source.strip():
        return
    check_text(source)
    match run_once(Job(source, only_check=True)):
        case Failed(reason):
            raise _refused(f"The script does not compile: {reason}.")
        case Lost() | NotRun():
            raise _refused("The script could not be checked now; try again in a moment.")


def check_text(source: str) -> None:
    """Refuse what cannot be stored as a script, JavaScript or not.

    Raises:
        ValidationError: it is too large, or has characters that no text of a database has.

    """
    try:
        size = len(source.encode())
    except UnicodeEncodeError:
        raise _refused("The script has half of a surrogate pair; write it as an escape, such as \\ud83d.") from None
    if size > MAX_SOURCE_BYTES:
        raise _refused(f"A script has at most {MAX_SOURCE_BYTES // 1024} KiB; this one has {size:,} bytes.")
    if "\0" in source:
        raise _refused("The script has a NUL character; write it as an escape: \\0.")


def _refused(text: str) -> ValidationError:
    return ValidationError(text, code="script")
