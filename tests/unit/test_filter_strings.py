"""A header filter must be something that a header can be."""

import pytest
from django.core.exceptions import ValidationError

from subscriptions.headers import validate_filter_string


@pytest.mark.behaviour("2.2")
@pytest.mark.parametrize("text", ["", "proj1008", " a  b ", "50%", "A=b;c\t"])
def test_what_a_header_can_carry_may_be_filtered_for(text: str) -> None:
    validate_filter_string(text)


@pytest.mark.behaviour("2.2")
@pytest.mark.parametrize("text", ["caf\u00e9", "a\nb", "a\n", "a\0"])
def test_what_no_header_can_carry_is_refused(text: str) -> None:
    with pytest.raises(ValidationError, match="visible ASCII"):
        validate_filter_string(text)
