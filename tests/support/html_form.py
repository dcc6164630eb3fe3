"""Read from a page what a browser sends of its forms."""

from html.parser import HTMLParser

NOT_SENT = {"submit", "file", "image", "button"}
"""Types of inputs that are sent only after a click."""


class Form(HTMLParser):
    """The fields that the forms of a page send unchanged, without buttons."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.fields: dict[str, str] = {}
        self._text_of = ""
        self._select = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        name, kind = given.get("name") or "", given.get("type")
        if tag == "input" and name and kind not in NOT_SENT and (kind != "checkbox" or "checked" in given):
            self.fields.setdefault(name, given.get("value") or "on" * (kind == "checkbox"))
        elif tag == "textarea":
            self._text_of, self.fields[name] = name, ""
        elif tag == "select":
            self._select = name
        elif tag == "option" and "selected" in given:
            self.fields[self._select] = given.get("value") or ""

    def handle_data(self, data: str) -> None:
        if self._text_of:
            self.fields[self._text_of] += data

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self.fields[self._text_of] = self.fields[self._text_of].removeprefix("\n")
            self._text_of = ""
