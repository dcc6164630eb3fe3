"""API-key tokens."""

from subscriptions.credentials.tokens import digest_of, shown_prefix_of, token_of


def test_a_token_is_brk_and_its_random_bytes_in_url_safe_base64() -> None:
    assert token_of(bytes(range(224, 256))) == "brk_4OHi4-Tl5ufo6err7O3u7_Dx8vP09fb3-Pn6-_z9_v8"


def test_a_token_is_found_by_its_sha_256() -> None:
    assert digest_of("brk_test").hex() == "9797c51c8baf5e1354af2b953fa1175d67898d9a3680492a30d12cb7f2a7ade9"


def test_what_is_shown_of_a_token_is_its_beginning() -> None:
    assert shown_prefix_of("brk_4OHi4-Tl5ufo6err") == "brk_4OHi4-Tl"
