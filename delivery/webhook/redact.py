"""Remove credentials from endpoints' answers: some repeat the headers that they got, and answers are stored and shown.

This is best effort and no security boundary: an endpoint may write a value in an unforeseen way.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import quote

MASK: Final = b"***"
MIN_CHARACTERS: Final = 8
"""Shorter credentials are not masked: they would match text that has nothing to do with them."""
MIN_UNNAMED_CHARACTERS: Final = 16
"""The same for a header whose name does not say that it has a credential."""
MIN_HEAD_CHARACTERS: Final = 4
"""The shortest beginning of a credential that is masked where an answer ends within it."""
MAX_CREDENTIAL_BYTES: Final = 16 * 1024
"""How much more of an answer is read than is shown, so that a credential at its end is found."""

_NAMED: Final = re.compile(r"auth|key|token|secret|passw|credential|signature|session|cookie", re.IGNORECASE)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]* +(\S.*)")
_MEDIA_TYPES: Final = re.compile(
    r"(\*|application|audio|font|image|message|model|multipart|text|video)/[a-z0-9.+*-]{1,64}([,;].*)?", re.IGNORECASE
)
_WORDS: Final = re.compile(r"[A-Za-z]{1,15}([ ,;._/-]+[A-Za-z]{1,15})*")
_PLAIN: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})
_ESCAPED_BY_SOME: Final = re.compile(r"""[<>&'+"]""")


def without_credentials(answer: bytes, headers: Mapping[str, str], *, max_bytes: int) -> bytes:
    """Return the first `max_bytes` of an answer, with the credentials in the configured headers masked."""
    forms = _forms_of(tuple(headers.items())) if answer and headers else ()
    for form in forms:
        answer = answer.replace(form, MASK)
    for form in forms:
        # It may have been cut off within a credential.
        if len(answer) < max_bytes + len(form) and form[:MIN_HEAD_CHARACTERS] in answer[-len(form) :]:
            lengths = range(min(len(form), len(answer)), MIN_HEAD_CHARACTERS - 1, -1)
            cut = next((length for length in lengths if answer.endswith(form[:length])), 0)
            answer = answer[:-cut] + MASK if cut else answer
    return answer[:max_bytes]


@lru_cache(maxsize=16_384)
def _forms_of(headers: tuple[tuple[str, str], ...]) -> tuple[bytes, ...]:
    """Return how endpoints may write the credentials in a destination's headers, the longest first."""
    return tuple(sorted({form for header in headers for form in _forms(*header)}, key=len, reverse=True))


def _forms(name: str, value: str) -> frozenset[bytes]:
    """Return how endpoints may write the credential in a header; nothing if its value is clearly not one."""
    if name.lower() in _PLAIN or _MEDIA_TYPES.fullmatch(value):
        return frozenset()
    if not _NAMED.search(name) and (len(value) < MIN_UNNAMED_CHARACTERS or _WORDS.fullmatch(value)):
        return frozenset()
    scheme = _SCHEME.fullmatch(value)
    bare = scheme.group(1) if scheme else value
    return frozenset(form.encode() for text in (value, bare) if len(text) >= MIN_CHARACTERS for form in _escaped(text))


def _escaped(text: str) -> set[str]:
    """Return a text as it is, in JSON as different writers escape it, and in a URL."""
    as_json = json.dumps(text)[1:-1]
    as_codes = json.dumps(_ESCAPED_BY_SOME.sub(lambda found: f"\0{ord(found.group()):04X}", text))[1:-1]
    upper = as_codes.replace("\\u0000", "\\u")
    lower = _ESCAPED_BY_SOME.sub(lambda found: f"\\u{ord(found.group()):04x}", text.replace("\\", "\\\\"))
    return {text, as_json, as_json.replace("/", "\\/"), upper, lower, quote(text, safe="")}
