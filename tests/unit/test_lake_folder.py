"""Whether the lake can be written to."""

from pathlib import Path

import pytest

from analytics.runs import problem_of


def test_a_folder_is_made_for_its_owner_alone(tmp_path: Path) -> None:
    lake = tmp_path / "made" / "on the way"
    assert problem_of(str(lake)) == ""
    assert (lake.is_dir(), lake.stat().st_mode & 0o777) == (True, 0o700)
    assert problem_of(str(lake)) == ""


def test_what_is_no_folder_is_told_with_the_variable_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    problem = problem_of(str(tmp_path / "file"))
    assert problem.startswith(f"The lake {tmp_path / 'file'} cannot be written to: ")
    assert problem.endswith("BROKER_LAKE says where it is.")


@pytest.mark.parametrize("lake", ["/proc/lake", "/dev/null/lake"])
def test_a_place_where_nobody_can_make_one_is_told(lake: str) -> None:
    assert f"The lake {lake} cannot be written to" in problem_of(lake)


def test_an_object_store_is_left_to_spark() -> None:
    assert problem_of("s3a://bucket/lake") == ""
