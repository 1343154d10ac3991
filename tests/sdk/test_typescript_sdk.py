"""Runs the TypeScript SDK's script under Node with nothing but what `client-env` prints."""

import os
import pathlib
import shutil
import subprocess

import pytest

HERE = pathlib.Path(__file__).resolve().parent / "ts"
LIMIT_S = 300


def test_the_official_typescript_sdk(platform):
    node = shutil.which("node")
    if node is None:
        pytest.skip("SKIPPED: node is not installed; scripts/install-test-deps.sh installs it")
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SUPERSERVE_", "NODE_"))}
    environment |= platform.client_env()
    done = subprocess.run(
        [node, "--test", "--test-reporter=spec", "sdk.test.mjs"],
        cwd=os.environ.get("SUPERSERVE_TS_TESTS", HERE),
        env=environment,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "fail 0" in done.stdout and "skipped 0" in done.stdout, done.stdout
