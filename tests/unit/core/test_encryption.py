"""Encryption: a value is decrypted with its secret, at its place and for its purpose, or not at all."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_project.core.encryption import KEY_ID_BYTES, NONCE_BYTES, DecryptionFailed, Keyring

SECRETS = st.lists(st.text(string.printable, min_size=1), min_size=1, max_size=3, unique=True)
PLACES = st.text(max_size=20)
TAG_BYTES = 16


def decrypts(keys: Keyring, encrypted: bytes, place: str) -> bool:
    try:
        keys.decrypt(encrypted, place)
    except DecryptionFailed:
        return False
    return True


@given(st.binary(max_size=200), SECRETS, PLACES)
def test_encrypted_value_is_decrypted_again(plain: bytes, secrets: list[str], place: str) -> None:
    keys = Keyring(secrets, "test")
    encrypted = keys.encrypt(plain, place)
    assert keys.decrypt(encrypted, place) == plain
    assert len(encrypted) == KEY_ID_BYTES + NONCE_BYTES + len(plain) + TAG_BYTES


@given(st.binary(max_size=200), PLACES, SECRETS)
def test_fallback_secrets_decrypt(plain: bytes, place: str, later: list[str]) -> None:
    encrypted = Keyring(["x" * 101], "test").encrypt(plain, place)
    assert Keyring([*later, "x" * 101], "test").decrypt(encrypted, place) == plain
    assert not decrypts(Keyring(later, "test"), encrypted, place)


@given(st.binary(max_size=50), PLACES, PLACES)
def test_value_is_bound_to_its_place(plain: bytes, place: str, other: str) -> None:
    keys = Keyring(["s"], "test")
    assert decrypts(keys, keys.encrypt(plain, place), other) == (place == other)


@given(st.binary(max_size=50), PLACES)
def test_value_is_bound_to_its_purpose(plain: bytes, place: str) -> None:
    assert not decrypts(Keyring(["s"], "another"), Keyring(["s"], "test").encrypt(plain, place), place)


@given(st.binary(max_size=50), st.data())
def test_damaged_value_is_not_decrypted(plain: bytes, data: st.DataObject) -> None:
    keys = Keyring(["s"], "test")
    encrypted = keys.encrypt(plain, "here")
    length = data.draw(st.integers(0, len(encrypted) - 1))
    bit = data.draw(st.integers(0, 8 * len(encrypted) - 1))
    flipped = bytearray(encrypted)
    flipped[bit // 8] ^= 1 << bit % 8
    for broken in (encrypted[:length], bytes(flipped), encrypted + b"\0"):
        assert not decrypts(keys, broken, "here")


def test_value_begins_with_the_id_of_its_key() -> None:
    before, now = Keyring(["old"], "test"), Keyring(["new", "old"], "test")
    assert before.encrypt(b"plain", "here").startswith(before.current_id)
    assert now.encrypt(b"plain", "here").startswith(now.current_id)
    assert before.current_id != now.current_id
    assert now.current_id != Keyring(["new", "old"], "another").current_id


def test_encrypting_twice_gives_different_bytes() -> None:
    keys = Keyring(["s"], "test")
    assert len({keys.encrypt(b"plain", "here") for _ in range(100)}) == 100


def test_secret_is_not_shown() -> None:
    assert "mellon" not in repr(Keyring(["mellon"], "test"))
    with pytest.raises(DecryptionFailed) as refused:
        Keyring(["mellon"], "test").decrypt(b"nonsense" * 9, "here")
    assert not refused.value.args
