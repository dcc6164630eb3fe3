"""What `./broker up` prints leads to where pages answer."""

from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from broker_project.stack import stacks
from broker_project.stack.folders import Kept, StackFolder
from broker_project.stack.servers import supervised
from broker_project.stack.up import addresses

WEB = "http://127.0.0.1:8002"
FOR_THE_PROXY = f"  web     {WEB}   for the proxy in front of it"


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ({}, [f"  admin   {WEB}/admin/", f"  API     {WEB}/api/docs/"]),
        (
            {"BROKER_DEVELOPMENT": ""},
            [FOR_THE_PROXY, "  admin   https://HOST/admin/", "  API     https://HOST/api/docs/"],
        ),
        (
            {"BROKER_DEVELOPMENT": "no"},
            [FOR_THE_PROXY, "  admin   https://HOST/admin/", "  API     https://HOST/api/docs/"],
        ),
        (
            {"BROKER_DEVELOPMENT": "0", "BROKER_PUBLIC_URL": "https://broker.example.org/"},
            [
                FOR_THE_PROXY,
                "  admin   https://broker.example.org/admin/",
                "  API     https://broker.example.org/api/docs/",
            ],
        ),
    ],
    ids=["development", "nothing said of it", "no address of its own", "behind a proxy"],
)
def test_pages_are_where_people_reach_them(
    given: dict[str, str], printed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("BROKER_DEVELOPMENT")
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    environment = stacks.variables(Kept(tmp_path / "stack.json", print), {}, 8002)
    with supervised(StackFolder(tmp_path)) as supervisor:
        stack = stacks.Stack(supervisor, environment, WEB, "http://127.0.0.1:5555", "", "admin:password", tmp_path)
        lines = addresses(stack).splitlines()
    assert [line.removesuffix("   with the login you have made") for line in lines[:-2]] == printed


def test_what_is_neither_on_nor_off_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BROKER_DEVELOPMENT", "ja")
    with pytest.raises(ImproperlyConfigured, match=r"^BROKER_DEVELOPMENT is 'ja': set it to 1 or 0\.$"):
        stacks.variables(Kept(tmp_path / "stack.json", print), {}, 8002)
