"""Callback tokens: 256 random bits, kept so that only who has the secret reads them (contract 6.10)."""

import secrets

import pytest

from broker_project.core.encryption import CALLBACK_TOKEN, DecryptionFailed, Keyring
from delivery.callbacks.address import TOKEN_BYTES, decrypted_token, encrypted_token, hash_of, is_own, token_in

KEYS = Keyring(["s"], CALLBACK_TOKEN)
HOME = "https://broker.example.org"


@pytest.fixture
def token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


@pytest.mark.behaviour("6.10")
def test_a_token_is_decrypted_again(token: str) -> None:
    sealed = encrypted_token(token, KEYS)
    assert decrypted_token(hash_of(token), sealed, KEYS) == token
    assert token.encode() not in sealed
    assert token not in repr(hash_of(token))


def test_a_token_is_not_decrypted_as_another(token: str) -> None:
    other = secrets.token_urlsafe(TOKEN_BYTES)
    with pytest.raises(DecryptionFailed):
        decrypted_token(hash_of(token), encrypted_token(other, KEYS), KEYS)


@pytest.mark.behaviour("6.9")
@pytest.mark.parametrize(
    "url",
    [
        "https://broker.example.org/api/v1/callbacks/TOKEN",
        "http://localhost:8000/behind/a/proxy/api/v1/callbacks/TOKEN",
        "HTTPS://BROKER.example.org:443/api/v1/callbacks/TOKEN",
        "https://broker.example.org/api/v1/callbacks/TOKEN/",
        "https://broker.example.org/api/v1/callbacks/TOKEN?a=b",
        "https://broker.example.org/api/v1/callbacks/TOKEN#",
        "https://broker.example.org/api/v1/callbacks/TOKEN;a=b",
        "https://broker.example.org/api/v1/callbacks/TOKEN/more",
        "https://broker.example.org//api/v1//callbacks///TOKEN",
        "https://broker.example.org/api/v1/x/../callbacks/./TOKEN",
        "https://broker.example.org/api/v1/x/%2E%2e/callbacks%2FTOKEN",
        "https://broker.example.org/../api/v1/%63allbacks/ENCODED",
        "https://broker.example.org/API/V1/Callbacks/TOKEN",
    ],
)
def test_a_token_is_found_in_an_address_however_that_is_spelt(url: str, token: str) -> None:
    encoded = f"%{ord(token[0]):02x}{token[1:]}"
    assert token_in(url.replace("TOKEN", token).replace("ENCODED", encoded)) == token


@pytest.mark.parametrize(
    "url",
    [
        "https://broker.example.org/api/v1/callbacks/TOKENx",
        "https://broker.example.org/api/v1/callbacks/",
        "https://broker.example.org/api/v1/messages/TOKEN",
        "https://broker.example.org/api/v1/callbacks/../TOKEN",
        "https://relay.example.org/?to=/api/v1/callbacks/TOKEN",
        "https://relay.example.org",
    ],
)
def test_other_urls_bear_no_token(url: str, token: str) -> None:
    assert token_in(url.replace("TOKEN", token)) is None


@pytest.mark.parametrize(
    ("url", "home", "expected"),
    [
        ("https://broker.example.org/api/v1/callbacks/x", HOME, True),
        ("https://broker.example.org/api/v1/callbacks/", HOME, True),
        ("HTTPS://Broker.Example.Org.:443//API/v1/./callbacks/x?y", HOME, True),
        ("https://broker.example.org/b/api/v1/callbacks/x", f"{HOME}/b", True),
        ("https://broker.example.org/%62/c/../api/v1/%63allbacks/x", f"{HOME}/b", True),
        ("https://broker.example.org/api/v1/callbacks/x", f"{HOME}/b", False),
        ("https://broker.example.org/api/v1/callbacksx", HOME, False),
        ("https://broker.example.org:444/api/v1/callbacks/x", HOME, False),
        ("https://other.example.org/api/v1/callbacks/x", HOME, False),
        ("https://broker.example.org/done?/api/v1/callbacks/x", HOME, False),
        ("http://[::1]/api/v1/callbacks/x", "http://[::1]:80", True),
    ],
)
def test_which_urls_are_where_the_broker_takes_replies(url: str, home: str, expected: bool) -> None:
    assert is_own(url, home) is expected
