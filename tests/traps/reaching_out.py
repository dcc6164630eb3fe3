"""Rules about what leaves the process, or comes into it as code."""

import ast
from collections.abc import Iterator

from tests.traps.rule import Rule, calls_of
from tests.traps.sources import Source, is_constant

HTTP = (
    *(f"requests.{name}" for name in ("get", "post", "put", "patch", "delete", "head", "options", "request")),
    *("requests.Session", "requests.session", "pycurl.Curl", "pycurl.CurlMulti"),
    *("urllib.request.", "http.client.", "urllib3.", "httpx.", "aiohttp."),
    *("socket.create_connection", "socket.socket", "asyncio.open_connection"),
)
CODE = (
    *("eval", "exec", "compile", "__import__", "yaml.unsafe_load", "yaml.full_load", "yaml.load_all"),
    *("pickle.", "cPickle.", "dill.", "marshal.", "shelve."),
)
SAFE_LOADERS = ("yaml.SafeLoader", "yaml.CSafeLoader", "_Loader")
"""The last is a safe one that minds duplicate keys."""
PROGRAMS = ("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput")


def code_from_data(source: Source) -> Iterator[ast.AST]:
    yield from calls_of(*CODE)(source)
    for call, called in source.calls():
        loaders = [source.dotted(one.value) for one in call.keywords if one.arg == "Loader"]
        is_loading = called == "yaml.load" and not (loaders and loaders[0] in SAFE_LOADERS)
        if is_loading or (called == "importlib.import_module" and not is_constant(call.args[0])):
            yield call


def shell(source: Source) -> Iterator[ast.AST]:
    yield from calls_of(*PROGRAMS)(source)
    for call, _ in source.calls():
        if any(one.arg == "shell" and not _is_false(one.value) for one in call.keywords):
            yield call


def _is_false(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


RULES = (
    Rule(
        "http-elsewhere",
        "Only delivery/http may connect: there addresses are checked, times and sizes are limited.",
        calls_of(*HTTP),
        apart_from={
            "delivery/http/": "the one client",
            "broker_project/stack/": "the stack asks its own processes, and the demo plays publishers and receivers",
            "subscriptions/scripts/": "a pair of sockets between a worker and its own child",
        },
    ),
    Rule("code-from-data", "What comes in is data: json, orjson or yaml's safe loaders read it.", code_from_data),
    Rule("shell", "Start programs with a list of words: no shell reads them.", shell),
)
