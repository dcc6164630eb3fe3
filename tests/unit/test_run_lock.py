"""What a run says where there is no database to be had."""

import pytest

from analytics.pipeline.run_lock import NoAddress, only_run


def test_an_address_that_is_none_is_not_shown() -> None:
    with pytest.raises(NoAddress) as refused, only_run("postgres://broker:s3cret@[nowhere"):
        pass
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None
