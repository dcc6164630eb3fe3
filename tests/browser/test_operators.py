"""Operators of filters are shown as they are typed."""

from typing import Any

import pytest

from tests.support import broker, factories
from tests.support.chromium import Page

DRAWN_OTHERWISE = """
    (() => {
        const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
        for (let node; node = walk.nextNode();) {
            const at = node.data.indexOf("->");
            if (at < 0 || !node.parentElement.checkVisibility()) continue;
            const range = document.createRange(), plain = document.createElement("span");
            range.setStart(node, at);
            range.setEnd(node, at + 2);
            plain.style.fontVariantLigatures = "none";
            plain.textContent = "->";
            node.parentElement.append(plain);
            const widths = [range, plain].map(one => one.getBoundingClientRect().width);
            plain.remove();
            found.push([node.data.trim(), widths[0] !== widths[1]]);
        }
        return found;
    })()
"""
"""Each text with an operator, and whether that is not as wide as one that is drawn character by character."""


@pytest.mark.parametrize("path", ["subscriptions/subscription/add/", "delivery/message/filter-lab/"])
def test_an_operator_is_read_as_it_is_typed(page: Page, live_server: Any, path: str) -> None:
    broker.publish_numbered(factories.subscription(filter="$$->'Body' IS NOT NULL").event_type, 1)
    page.open(f"{live_server.url}/admin/{path}")
    page.evaluate("document.fonts.ready.then(() => true)")
    operators = page.evaluate(DRAWN_OTHERWISE)
    assert operators
    assert [text for text, is_drawn_otherwise in operators if is_drawn_otherwise] == []
