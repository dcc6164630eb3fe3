"""Headers as they go over the wire, and a request that has them ready."""

from collections.abc import Iterable

from requests import PreparedRequest
from requests.structures import CaseInsensitiveDict


def header_line(name: str, value: str) -> bytes:
    """Return a header as libcurl takes it: on one line, ended by a semicolon if it has no value."""
    return (f"{name}: {value}" if value else f"{name};").encode("latin-1", "replace").translate(None, b"\r\n\0")


def lines_of(request: PreparedRequest) -> Iterable[bytes]:
    """Return a request's headers as libcurl takes them."""
    if isinstance(request, EncodedRequest):
        return request.lines
    return [header_line(name, value) for name, value in request.headers.items()]


class EncodedRequest(PreparedRequest):
    """A request whose headers are lines already, a mapping only for who asks: that costs more than all the rest.

    Its attributes are set, not `.prepare()`d, which could only change what is already right.
    """

    def __init__(self, method: str, url: str, lines: list[bytes], body: bytes) -> None:
        super().__init__()
        self.method, self.url, self.body = method, url, body
        self.lines = lines

    @property
    def headers(self) -> CaseInsensitiveDict[str]:
        """The headers by name."""
        pairs = (line.decode("latin-1").partition(": ") for line in self.lines)
        return CaseInsensitiveDict({name.removesuffix(";"): value for name, _, value in pairs})

    @headers.setter
    def headers(self, _: object) -> None:
        """Ignore what `requests` begins with."""
