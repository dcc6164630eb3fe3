"""Issue the demo's management key; run as a module with the stack's environment, prints the token."""

import secrets

import django


def main() -> None:
    """Issue a key and print its token."""
    django.setup()
    from django.utils import timezone  # noqa: PLC0415 - models need the set-up first

    from subscriptions.key_issuing import issue  # noqa: PLC0415
    from subscriptions.key_tokens import TOKEN_BYTES  # noqa: PLC0415

    _, token = issue(None, random_bytes=secrets.token_bytes(TOKEN_BYTES), now=timezone.now(), label="demo")
    print(token)


if __name__ == "__main__":
    main()
