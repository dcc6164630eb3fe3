"""Receipts: what was written is read, and nobody makes one up (contract 9.1, 9.4)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from delivery.mailbox.receipts import Receipt, decode_receipt, encode_receipt, receipt_key

pytestmark = pytest.mark.behaviour("9.4")

KEY, OLD_KEY, FOREIGN_KEY = (receipt_key(secret) for secret in ("now", "before", "elsewhere"))
RECEIPTS = st.builds(Receipt, st.integers(1, 2**63 - 1), st.integers(0, 2**63 - 1))
SUBSCRIBERS = st.integers(1, 2**63 - 1)
ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
ONE = encode_receipt(Receipt(5, 1), subscriber_id=7, key=KEY)


@given(RECEIPTS, SUBSCRIBERS)
def test_an_encoded_receipt_is_decoded(receipt: Receipt, subscriber_id: int) -> None:
    text = encode_receipt(receipt, subscriber_id=subscriber_id, key=KEY)
    assert (len(text), decode_receipt(text, subscriber_id=subscriber_id, keys=[KEY])) == (32, receipt)


@given(RECEIPTS, SUBSCRIBERS, SUBSCRIBERS)
def test_another_subscribers_receipt_says_nothing(receipt: Receipt, mine: int, other: int) -> None:
    text = encode_receipt(receipt, subscriber_id=other, key=KEY)
    assert (decode_receipt(text, subscriber_id=mine, keys=[KEY]) is None) == (mine != other)


@given(st.integers(0, 31), st.sampled_from(ALPHABET))
def test_a_receipt_with_a_changed_character_is_invalid(place: int, character: str) -> None:
    changed = ONE[:place] + character + ONE[place + 1 :]
    assert (decode_receipt(changed, subscriber_id=7, keys=[KEY]) is None) == (changed != ONE)


@pytest.mark.parametrize("text", ["", ONE[:-1], f"{ONE}A", f"{ONE}=", f" {ONE}", f"{ONE}\n", "é" * 32, "!" * 32])
def test_malformed_texts_are_no_receipts(text: str) -> None:
    assert decode_receipt(text, subscriber_id=7, keys=[KEY]) is None


@given(st.text(max_size=30))
def test_no_text_is_an_error(text: str) -> None:
    assert decode_receipt(text, subscriber_id=7, keys=[KEY]) in {None, Receipt(5, 1)}


@pytest.mark.parametrize(
    ("keys", "is_known"),
    [
        ([KEY], True),
        ([OLD_KEY, KEY], True),
        ([KEY, OLD_KEY], True),
        ([OLD_KEY], False),
        ([FOREIGN_KEY], False),
        ([], False),
    ],
)
def test_a_receipt_counts_under_the_keys_of_this_installation(keys: list[bytes], *, is_known: bool) -> None:
    assert (decode_receipt(ONE, subscriber_id=7, keys=keys) == Receipt(5, 1)) == is_known
