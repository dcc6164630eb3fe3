"""Callback tokens: 256 random bits, kept so that only who has the secret reads them (behaviour 6.10)."""

import secrets

import pytest

from delivery.callback_tokens import TOKEN_BYTES, TokenKeys, TokenUnreadable, address_of, hash_of, token_in, token_of

HOME = "https://broker.example.org"


@pytest.fixture
def token() -> str:
    return token_of(secrets.token_bytes(TOKEN_BYTES))


@pytest.mark.behaviour("6.10")
def test_what_is_kept_of_a_token_can_be_read_again(token: str) -> None:
    sealed = TokenKeys(["s"]).seal(token)
    assert TokenKeys(["s"]).open(hash_of(token), sealed) == token
    assert token.encode() not in sealed
    assert token not in repr(hash_of(token))


def test_a_token_kept_before_the_secret_was_rotated_can_be_read_as_long_as_the_old_one_is_a_fallback(
    token: str,
) -> None:
    sealed = TokenKeys(["old"]).seal(token)
    assert TokenKeys(["new", "middle", "old"]).open(hash_of(token), sealed) == token
    with pytest.raises(TokenUnreadable):
        TokenKeys(["new", "middle"]).open(hash_of(token), sealed)


def test_new_tokens_are_kept_under_the_new_secret(token: str) -> None:
    assert TokenKeys(["new"]).open(hash_of(token), TokenKeys(["new", "old"]).seal(token)) == token


def test_what_was_kept_of_one_token_is_not_read_as_another(token: str) -> None:
    other = token_of(secrets.token_bytes(TOKEN_BYTES))
    keys = TokenKeys(["s"])
    for stored in (keys.seal(other), keys.seal(token)[:-1] + b"!", b"", b"1234"):
        with pytest.raises(TokenUnreadable):
            keys.open(hash_of(token), stored)


@pytest.mark.parametrize(
    ("before", "after", "is_ours"),
    [
        (HOME, "", True),
        (f"{HOME}/behind/a/proxy", "", True),
        ("http://localhost:8000", "", True),
        (HOME, "/", True),
        (HOME, "?a=b", False),
        (HOME, "#there", False),
        (HOME, "/more", False),
        (HOME, "x", False),
        (f"{HOME}?x=", "", False),
        ("ftp://broker.example.org", "", False),
        ("", "", False),
    ],
)
def test_which_urls_bear_a_token(before: str, after: str, is_ours: bool, token: str) -> None:
    assert token_in(address_of(token, before) + after) == (token if is_ours else None)
