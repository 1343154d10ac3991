"""The MCP conformance suite and the MCP Inspector's command line, at both HTTP endpoints and over stdio.

`tests/conformance/scenarios.json` says for every scenario whether it has to pass; what it says is explained in
`docs/mcp-conformance.md`. Scenarios that want tools of their own run against a fixture on the same code
(`crates/mcp/src/http/tests/conformance.rs`).
"""

import contextlib
import json
import os
import pathlib
import re
import subprocess

import pytest

from test_mcp import PRODUCT
from test_mcp_http import endpoint, served  # noqa: F401  a fixture

ROOT = pathlib.Path(__file__).resolve().parents[2]
PACKAGES = pathlib.Path(os.environ.get("SUPERSERVE_CONFORMANCE", ROOT / "target/clients/conformance"))
NODE = next((path for path in PACKAGES.glob("node_modules/node-linux-*/bin/node")), None)
EXPECTED = json.loads((ROOT / "tests/conformance/scenarios.json").read_text())
# All scenarios of one revision take about two seconds; generous for a busy machine.
LIMIT_S = 120

pytestmark = pytest.mark.skipif(
    NODE is None, reason=f"SKIPPED: nothing in {PACKAGES}; scripts/install-test-deps.sh installs it"
)


@contextlib.contextmanager
def with_key(url: str, key: str):
    """The same endpoint for a client that cannot send a key."""
    command = [str(NODE), str(ROOT / "tests/conformance/proxy.mjs"), url]
    env = {"SUPERSERVE_API_KEY": key}
    proxy = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=env, text=True)
    try:
        yield proxy.stdout.readline().strip()
    finally:
        proxy.kill()
        proxy.wait()
        proxy.stdout.close()


@pytest.mark.parametrize("version", EXPECTED["versions"])
@pytest.mark.parametrize("where", ["mounted", "served"])
def test_the_suite_passes(platform, served, where, version, tmp_path):  # noqa: F811
    key = platform.client_env()["SUPERSERVE_API_KEY"]
    with with_key(endpoint(platform, served, where), key) as url:
        suite = [str(NODE), str(PACKAGES / "node_modules/.bin/conformance"), "server", "--url", url]
        suite += ["--suite", "all", "--spec-version", version, "-o", str(tmp_path)]
        # Its exit code says that scenarios failed which are not for us; what counts is in the files.
        ran = subprocess.run(suite, capture_output=True, text=True, timeout=LIMIT_S, cwd=tmp_path)
    passed = 0
    for checks in sorted(tmp_path.glob("*/checks.json")):
        # server-<scenario>-<date>T<time>Z
        name = checks.parent.name.removeprefix("server-").rsplit("-", 6)[0]
        expected = EXPECTED["scenarios"].get(name)
        assert expected, f"{name} is new and has to be judged"
        if expected["by"] != "server":
            continue
        passed += 1
        failed = {check["id"]: check for check in json.loads(checks.read_text()) if check["status"] == "FAILURE"}
        assert set(failed) == set(expected.get("except", {})), f"{name}: {json.dumps(list(failed.values()), indent=1)}"
    assert passed >= 4, ran.stdout + ran.stderr


def test_every_exception_is_explained():
    text = (ROOT / "docs/mcp-conformance.md").read_text()
    assert f"`{EXPECTED['suite']}`" in text
    lock = json.loads((ROOT / "tests/conformance/package-lock.json").read_text())
    assert lock["packages"]["node_modules/@modelcontextprotocol/conformance"]["version"] == EXPECTED["suite"]
    for name, expected in EXPECTED["scenarios"].items():
        assert f"`{name}`" in text, name
        for reason in [expected.get("because"), *expected.get("except", {}).values()]:
            assert reason in (None, "fixture") or f"**{reason}**" in text, reason


def test_every_test_that_is_named_exists():
    text = (ROOT / "docs/mcp-conformance.md").read_text().split("## Behaviours")[1]
    sources = "".join(
        path.read_text()
        for pattern in ("crates/mcp/**/*.rs", "crates/superserve/tests/**/*.rs", "tests/mcp/*.py")
        for path in ROOT.glob(pattern)
    )
    named = re.findall(r"`([\w./]+)`", text)
    assert len(named) > 50
    for name in named:
        if "/" in name or "." in name:
            assert any((ROOT / part / name).exists() for part in ("", "crates/mcp/src", "tests/mcp")), name
        else:
            assert re.search(rf"(fn|def) {name}\b", sources), name


def inspector(*arguments: str) -> dict:
    command = [str(NODE), str(PACKAGES / "node_modules/.bin/inspector"), "--cli", *arguments, "--format", "json"]
    env = {"PATH": os.environ["PATH"], "HOME": os.environ.get("TMPDIR", "/tmp")}
    ran = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=env)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return json.loads(ran.stdout)["result"]


@pytest.mark.parametrize("where", ["stdio", "mounted", "served"])
def test_the_inspector_lists_and_calls(platform, served, where):  # noqa: F811
    variables = platform.client_env()
    key = variables["SUPERSERVE_API_KEY"]
    if where == "stdio":
        target = [str(platform.program), "mcp", "-e", f"SUPERSERVE_API_KEY={key}"]
        target += ["-e", f"SUPERSERVE_BASE_URL={variables['SUPERSERVE_BASE_URL']}"]
    else:
        target = [endpoint(platform, served, where), "--transport", "http", "--header", f"Authorization: Bearer {key}"]
    names = [tool["name"] for tool in inspector(*target, "--method", "tools/list")["tools"]]
    assert names == [name for name in PRODUCT if name in names] and "sandbox_exec" in names

    def call(tool: str, **arguments) -> dict:
        result = inspector(
            *target, "--method", "tools/call", "--tool-name", tool, "--tool-args-json", json.dumps(arguments)
        )
        assert not result.get("isError"), result
        return result["structuredContent"]

    made = call("sandbox_create", name="inspector")
    try:
        assert call("sandbox_exec", sandbox_id=made["id"], command="echo hello")["stdout"] == "hello\n"
    finally:
        assert call("sandbox_kill", sandbox_id=made["id"])["deleted"] is True
