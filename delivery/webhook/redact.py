"""Credentials in what endpoints answer: some repeat the headers that they were sent, and answers are shown and kept.

It is the best that can be done, and no border: an endpoint may write a value in ways that nobody foresees.
"""

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final
from urllib.parse import quote

MASK: Final = b"***"
SHORTEST: Final = 8
"""Characters of a credential: what is shorter would be missing from what has nothing to do with it."""
SHORTEST_UNNAMED: Final = 16
"""The same where the name does not say that it is one."""
SHORTEST_HEAD: Final = 4
"""Characters of a credential's beginning that are masked where an answer ends within it."""
LONGEST: Final = 16 * 1024
"""Bytes of a credential that an endpoint repeats, roughly: as much more of an answer is looked at than is shown."""

_NAMED: Final = re.compile(r"auth|key|token|secret|passw|credential|signature|session|cookie", re.IGNORECASE)
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9-]* +(\S.*)")
_MEDIA_TYPES: Final = re.compile(
    r"(\*|application|audio|font|image|message|model|multipart|text|video)/[a-z0-9.+*-]{1,64}([,;].*)?", re.IGNORECASE
)
_WORDS: Final = re.compile(r"[A-Za-z]{1,15}([ ,;._/-]+[A-Za-z]{1,15})*")
_PLAIN: Final = frozenset({"accept", "accept-language", "content-type", "user-agent"})
_ESCAPED_BY_SOME: Final = re.compile(r"""[<>&'+"]""")


def without_credentials(answer: bytes, headers: Mapping[str, str], *, most: int) -> bytes:
    """Return the first `most` bytes of an answer, without what the configured headers authenticate with."""
    if not answer:
        return answer
    forms = sorted({form for one in headers.items() for form in _forms(*one)}, key=len, reverse=True)
    for form in forms:
        answer = answer.replace(form, MASK)
    for form in forms:
        if len(answer) < most + len(form):
            answer = _without_head(answer, form)
    return answer[:most]


def _without_head(answer: bytes, form: bytes) -> bytes:
    """Return an answer without the beginning of a credential that it ends with: it was read no further."""
    for length in range(min(len(form), len(answer)), SHORTEST_HEAD - 1, -1):
        if answer.endswith(form[:length]):
            return answer[:-length] + MASK
    return answer


@lru_cache(maxsize=1024)
def _forms(name: str, value: str) -> frozenset[bytes]:
    """Return how endpoints write the credential of a header; nothing if its value is plainly none."""
    if not _is_credential(name, value):
        return frozenset()
    scheme = _SCHEME.fullmatch(value)
    bare = scheme.group(1) if scheme else value
    return frozenset(form.encode() for one in (value, bare) if len(one) >= SHORTEST for form in _escaped(one))


def _is_credential(name: str, value: str) -> bool:
    if name.lower() in _PLAIN or _MEDIA_TYPES.fullmatch(value):
        return False
    if _NAMED.search(name):
        return len(value) >= SHORTEST
    return len(value) >= SHORTEST_UNNAMED and not _WORDS.fullmatch(value)


def _escaped(text: str) -> set[str]:
    """Return a text as it is, in JSON as different writers escape it, and in an address."""
    as_json = json.dumps(text)[1:-1]
    as_codes = json.dumps(_ESCAPED_BY_SOME.sub(lambda one: f"\0{ord(one.group()):04X}", text))[1:-1]
    upper = as_codes.replace("\\u0000", "\\u")
    lower = _ESCAPED_BY_SOME.sub(lambda one: f"\\u{ord(one.group()):04x}", text.replace("\\", "\\\\"))
    return {text, as_json, as_json.replace("/", "\\/"), upper, lower, quote(text, safe="")}
