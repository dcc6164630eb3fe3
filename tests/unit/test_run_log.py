"""A run's log keeps its head and its tail."""

import stat
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from analytics import spark_process
from analytics.spark_process import RunLog


def kept(tmp_path: Path, written: list[bytes]) -> bytes:
    log = RunLog(tmp_path / "log", head=10, tail=4)
    for text in written:
        log.write(text)
    log.close()
    return (tmp_path / "log").read_bytes()


def test_what_is_short_is_kept_whole(tmp_path: Path) -> None:
    assert kept(tmp_path, [b"0123456789", b"abcd", b"efgh"]) == b"0123456789abcdefgh"


def test_of_what_is_long_the_middle_is_left_out(tmp_path: Path) -> None:
    marker = b"\n... 5 bytes are left out here ...\n"
    assert kept(tmp_path, [b"0123456789", b"abcdefghi"]) == b"0123456789" + marker + b"fghi"
    assert stat.S_IMODE((tmp_path / "log").stat().st_mode) == 0o600


def test_what_java_was_told_is_not_kept(tmp_path: Path) -> None:
    told = "NOTE: Picked up JDK_JAVA_OPTIONS: -Djavax.net.ssl.trustStorePassword=hunter2"
    (tmp_path / "log").write_text(f"one\n{told}\ntwo\n{told}")
    assert spark_process.kept(tmp_path / "log") == "one\ntwo\n"


@given(st.lists(st.binary(max_size=30), max_size=20))
def test_head_and_tail_are_as_written_and_nothing_grows(written: list[bytes]) -> None:
    path = Path("/dev/shm")  # noqa: S108 - one file, over and over
    whole, text = b"".join(written), kept(path, written)
    (path / "log").unlink()
    assert text[:10] == whole[:10]
    assert text[-4:] == whole[-4:]
    assert len(text) <= 10 + 2 * 4 + len("\n... 999 bytes are left out here ...\n")
