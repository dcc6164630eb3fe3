"""The keyring: what is sealed opens with its secret, at its place and for its purpose, or not at all."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_project.core.keyring import KEY_ID_BYTES, NONCE_BYTES, CannotBeOpened, Keyring

SECRETS = st.lists(st.text(string.printable, min_size=1), min_size=1, max_size=3, unique=True)
PLACES = st.text(max_size=20)
TAG_BYTES = 16


def opens(keys: Keyring, sealed: bytes, place: str) -> bool:
    try:
        keys.open(sealed, place)
    except CannotBeOpened:
        return False
    return True


@given(st.binary(max_size=200), SECRETS, PLACES)
def test_what_is_sealed_opens_again(plain: bytes, secrets: list[str], place: str) -> None:
    keys = Keyring(secrets, "test")
    sealed = keys.seal(plain, place)
    assert keys.open(sealed, place) == plain
    assert len(sealed) == KEY_ID_BYTES + NONCE_BYTES + len(plain) + TAG_BYTES


@given(st.binary(max_size=200), PLACES, SECRETS)
def test_it_opens_as_long_as_its_secret_is_among_the_fallbacks(plain: bytes, place: str, later: list[str]) -> None:
    sealed = Keyring(["x" * 101], "test").seal(plain, place)
    assert Keyring([*later, "x" * 101], "test").open(sealed, place) == plain
    assert not opens(Keyring(later, "test"), sealed, place)


@given(st.binary(max_size=50), PLACES, PLACES)
def test_it_opens_at_its_place_only(plain: bytes, place: str, other: str) -> None:
    keys = Keyring(["s"], "test")
    assert opens(keys, keys.seal(plain, place), other) == (place == other)


@given(st.binary(max_size=50), PLACES)
def test_it_opens_for_its_purpose_only(plain: bytes, place: str) -> None:
    assert not opens(Keyring(["s"], "another"), Keyring(["s"], "test").seal(plain, place), place)


@given(st.binary(max_size=50), st.data())
def test_what_is_cut_or_altered_does_not_open(plain: bytes, data: st.DataObject) -> None:
    keys = Keyring(["s"], "test")
    sealed = keys.seal(plain, "here")
    length = data.draw(st.integers(0, len(sealed) - 1))
    bit = data.draw(st.integers(0, 8 * len(sealed) - 1))
    flipped = bytearray(sealed)
    flipped[bit // 8] ^= 1 << bit % 8
    for broken in (sealed[:length], bytes(flipped), sealed + b"\0"):
        assert not opens(keys, broken, "here")


def test_a_value_begins_with_the_id_of_the_key_that_sealed_it() -> None:
    before, now = Keyring(["old"], "test"), Keyring(["new", "old"], "test")
    assert before.seal(b"plain", "here").startswith(before.present_id)
    assert now.seal(b"plain", "here").startswith(now.present_id)
    assert before.present_id != now.present_id
    assert now.present_id != Keyring(["new", "old"], "another").present_id


def test_the_same_is_sealed_otherwise_each_time() -> None:
    keys = Keyring(["s"], "test")
    assert len({keys.seal(b"plain", "here") for _ in range(100)}) == 100


def test_nothing_of_the_secret_is_shown() -> None:
    assert "mellon" not in repr(Keyring(["mellon"], "test"))
    with pytest.raises(CannotBeOpened) as refused:
        Keyring(["mellon"], "test").open(b"nonsense" * 9, "here")
    assert not refused.value.args
