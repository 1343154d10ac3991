"""The official TypeScript MCP client under Node: `tests/sdk/ts/mcp.test.mjs` beside its `node_modules`."""

import os
import pathlib
import shutil
import subprocess

HERE = pathlib.Path(__file__).resolve().parent.parent / "sdk/ts"
# Both transports with a command of six seconds each; generous for a busy machine.
LIMIT_S = 180


def test_the_typescript_client_uses_both_transports(platform):
    node = shutil.which("node")
    assert node, "node is not installed; scripts/install-test-deps.sh installs it"
    known = platform.client_env()
    env = {name: known[name] for name in ("SUPERSERVE_API_KEY", "SUPERSERVE_BASE_URL")}
    env |= {"SUPERSERVE_PROGRAM": str(platform.program), "PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}
    done = subprocess.run(
        [node, "--test", "--test-reporter=spec", "mcp.test.mjs"],
        cwd=os.environ.get("SUPERSERVE_TS_TESTS", HERE),
        env=env,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert "pass 10" in done.stdout and "skipped 0" in done.stdout, done.stdout
