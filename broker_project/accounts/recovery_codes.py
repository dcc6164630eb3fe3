"""Codes that count once each, for who has lost the telephone: 80 random bits, so that a plain hash hides them."""

import base64
import hashlib
import re
from typing import Final

HOW_MANY: Final = 10
CODE_BYTES: Final = 10
RANDOM_BYTES: Final = HOW_MANY * CODE_BYTES
"""What all of them are made of."""
GROUP: Final = 4

_CODE = re.compile(r"[A-Z2-7]{16}")


def codes_of(random_bytes: bytes) -> list[str]:
    """Return codes such as `ABCD-EFGH-IJKL-MNOP`, one for each `CODE_BYTES`."""
    parts = (random_bytes[begin : begin + CODE_BYTES] for begin in range(0, len(random_bytes), CODE_BYTES))
    return [_grouped(base64.b32encode(part).decode()) for part in parts]


def digest_of(code: str) -> bytes | None:
    """Return what is stored of a code, however it is typed; None for what cannot be one."""
    plain = code.upper().replace("-", "").replace(" ", "")
    return hashlib.sha256(plain.encode()).digest() if _CODE.fullmatch(plain) else None


def _grouped(text: str) -> str:
    return "-".join(text[begin : begin + GROUP] for begin in range(0, len(text), GROUP))
