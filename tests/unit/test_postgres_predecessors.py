"""What a PostgreSQL that was killed leaves in its folder does not keep the next one from starting."""

import os
from pathlib import Path

import pytest

from broker_project.stack.postgres import end_predecessor


@pytest.mark.parametrize(
    "left",
    ["", f"{os.getpid()}\n", f"{os.getpid()}\n/elsewhere\n1\n2\n\n127.0.0.1\n  77  999999999\nready\n"],
    ids=["nothing written yet", "the id of another program", "memory that nobody has"],
)
def test_what_says_nothing_of_a_running_server_is_forgotten(tmp_path: Path, left: str) -> None:
    (tmp_path / "postmaster.pid").write_text(left)
    end_predecessor(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_where_nothing_was_left_nothing_is_done(tmp_path: Path) -> None:
    end_predecessor(tmp_path)
    assert list(tmp_path.iterdir()) == []
