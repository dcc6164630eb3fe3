"""A headless Chromium, driven by the DevTools protocol over a pipe, without further packages."""

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from broker_project.core.subprocesses import die_with
from broker_project.stack.load.wait import wait_until

BINARY: Final = shutil.which("chromium")
OPTIONS: Final = (
    *("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--hide-scrollbars", "--remote-debugging-pipe"),
)
"""Without a sandbox, which containers do not allow: it opens pages of this project only."""

_IS_LOADED: Final = "performance.getEntriesByType('navigation')[0]?.loadEventEnd"
"""Until then pictures and fonts move what is below them, and a page that its scripts have not shown yet has no layout:
its `innerText` has hidden words too."""
_MIDDLE: Final = """
    (() => {
        const found = %s
        if (!found) return null;
        found.scrollIntoView({block: "center"});
        const box = found.getBoundingClientRect();
        return box.width && [box.x + box.width / 2, box.y + box.height / 2];
    })()
"""
_SHOWN: Final = """
    [...document.querySelectorAll(%s)].find(
        one => one.checkVisibility({visibilityProperty: true}) && (one.innerText || one.value || "").includes(%s))
"""


class Page:
    """The one page of a browser: what it shows, and what a person does to it."""

    def __init__(self, commands: int, messages: int) -> None:
        self._commands, self._messages = os.fdopen(commands, "wb", 0), os.fdopen(messages, "rb")
        self._ids = itertools.count(1)
        self._session = ""
        (target,) = (one for one in self._send("Target.getTargets")["targetInfos"] if one["type"] == "page")
        self._session = self._send("Target.attachToTarget", targetId=target["targetId"], flatten=True)["sessionId"]
        self.resize(1400)

    def resize(self, width: int, height: int = 900, *, dark: bool = False) -> None:
        """Set the size of the window, and the colours that the person prefers."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self._send("Emulation.setDeviceMetricsOverride", **size)
        colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self._send("Emulation.setEmulatedMedia", features=colours)

    def set_cookie(self, address: str, name: str, value: str) -> None:
        """Have a cookie of a site."""
        self._send("Network.setCookie", url=address, name=name, value=value)

    def open(self, address: str) -> None:
        """Go to an address, and wait until the page has loaded."""
        self._send("Page.navigate", url=address)
        self.wait_for(f"location.href === {json.dumps(address)}")

    def evaluate(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        answer = self._send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> None:
        """Wait until a page has loaded for which a JavaScript expression is true."""
        loaded = f"{_IS_LOADED} && ({expression})"
        wait_until(lambda: self._is_true(loaded), saying=lambda: f"{loaded}: {self.text()}")

    def click(self, selector: str, text: str = "", times: int = 1) -> None:
        """Click the middle of the first element that is to be seen and has this text, once it stays where it is."""
        middle = _MIDDLE % (_SHOWN % (json.dumps(selector), json.dumps(text)))
        self.wait_for(middle)
        x, y = self.evaluate(middle)
        self._send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        for number, what in itertools.product(range(times), ("mousePressed", "mouseReleased")):
            self._send("Input.dispatchMouseEvent", type=what, x=x, y=y, button="left", clickCount=number + 1)

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self._send("Input.insertText", text=text)

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press a key of this name and virtual key code, which may stand for a text."""
        named = {"key": key, "windowsVirtualKeyCode": code}
        self._send("Input.dispatchKeyEvent", type="keyDown", text=text, **named)
        self._send("Input.dispatchKeyEvent", type="keyUp", **named)

    def text(self) -> str:
        """Return what the page shows."""
        return str(self.evaluate("document.body.innerText"))

    def screenshot(self, path: Path) -> None:
        """Store a picture of what the window shows."""
        picture = self._send("Page.captureScreenshot")
        path.write_bytes(base64.b64decode(picture["data"]))

    def close(self) -> None:
        """Let the browser end, which it does when nobody reads from it."""
        self._commands.close()
        self._messages.close()

    def _is_true(self, expression: str) -> bool:
        try:
            return bool(self.evaluate(expression))
        except LookupError:  # the page is being replaced
            return False

    def _send(self, method: str, **parameters: object) -> Any:
        number = next(self._ids)
        command = {"id": number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        self._commands.write(json.dumps(command).encode() + b"\0")
        while (answer := self._next_message()).get("id") != number:
            pass
        if "error" in answer:
            raise LookupError(answer["error"]["message"])
        return answer["result"]

    def _next_message(self) -> Any:
        read = bytearray()
        while (byte := self._messages.read(1)) != b"\0":
            if not byte:
                raise EOFError("the browser has ended")
            read += byte
        return json.loads(read)


@contextlib.contextmanager
def running_browser(folder: Path) -> Iterator[Page]:
    """Run a browser with its profile in `folder`; give its page."""
    assert BINARY
    (theirs_in, commands), (messages, theirs_out) = os.pipe(), os.pipe()
    parent = os.getpid()

    def begin() -> None:
        die_with(parent)
        held_in, held_out = os.dup(theirs_in), os.dup(theirs_out)  # copies: the first dup2 could close the other one
        os.dup2(held_in, 3)
        os.dup2(held_out, 4)

    process = subprocess.Popen(
        (BINARY, *OPTIONS, f"--user-data-dir={folder}", "about:blank"),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        preexec_fn=begin,  # noqa: PLW1509 - a few system calls
        close_fds=False,
        start_new_session=True,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        with contextlib.closing(Page(commands, messages)) as page:
            yield page
    finally:
        process.terminate()
        process.wait()
