"""Templates with the official Python SDK: the life of one, a failed build, and, where a checkout of the vendor's repository is
named, its own live tests unchanged."""

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

import pytest
from superserve import EnvStep, EnvStepValue, RunStep, Sandbox, Template, UserStep, UserStepValue, WorkdirStep
from superserve.errors import BuildError, ConflictError, NotFoundError

from conftest import ROOT, own_platform

# A checkout of superserve-ai/superserve; its tests are not part of this repository.
UPSTREAM = os.environ.get("SUPERSERVE_UPSTREAM")
REGISTRY_LIMIT_S = 20


@pytest.fixture(scope="module")
def registry(tmp_path_factory):
    """Debian's registry on a free port, or None where it is not installed."""
    program = shutil.which("docker-registry")
    if program is None:
        yield None
        return
    directory = tmp_path_factory.mktemp("registry")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    config = directory / "config.yml"
    storage = f"storage: {{filesystem: {{rootdirectory: {directory / 'data'}}}}}"
    config.write_text(f'version: 0.1\nlog: {{level: error}}\n{storage}\nhttp: {{addr: "{address}"}}\n')
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([program, "serve", str(config)], **quiet)
    try:
        until = time.monotonic() + REGISTRY_LIMIT_S
        while True:
            try:
                host, port = address.split(":")
                socket.create_connection((host, int(port)), timeout=1).close()
                break
            except OSError:
                assert time.monotonic() < until, "the registry does not start"
                time.sleep(0.05)
        yield address
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def building(registry):
    """A platform with a mirror of the default registry, with the variables of its clients, and the base layer."""
    with own_platform(*(("--registry-mirrors", registry) if registry else ())) as running:
        yield running, running.base_layer


def test_a_template_lives(building):
    spec = {
        "from_": "template:superserve/base",
        "steps": [
            RunStep(run="mkdir -p /srv/app && echo built"),
            UserStep(user=UserStepValue(name="app", sudo=False)),
            WorkdirStep(workdir="/srv/app"),
            EnvStep(env=EnvStepValue(key="GREETING", value="hello")),
            RunStep(run='echo "$GREETING" > /tmp/greeting'),
        ],
        "start_cmd": "exec python -m http.server 8080 --directory /tmp",
        "ready_cmd": "curl -fsS -o /dev/null http://127.0.0.1:8080/greeting",
    }
    template = Template.create(name="sdk/life", disk_mib=2048, **spec)
    with pytest.raises(ConflictError):
        Template.create(name="sdk/life", from_="template:superserve/base")
    printed = []
    template.wait_until_ready(on_log=lambda event: printed.append((event.stream.value, event.text)))
    assert ("stdout", "built\n") in printed
    again = Template.connect("sdk/life").get_info()
    assert again.status.value == "ready" and again.built_at is not None
    build = template.list_builds()[0]
    assert template.rebuild().build_spec_hash == build.build_spec_hash
    sandbox = Sandbox.create(name="of-template", from_template="sdk/life")
    try:
        shown = sandbox.commands.run("id -un; pwd; printenv GREETING; curl -fsS http://127.0.0.1:8080/greeting")
        assert shown.stdout.split() == ["app", "/srv/app", "hello", "hello"]
        with pytest.raises(ConflictError):
            template.delete()
    finally:
        sandbox.kill()
    until = time.monotonic() + 60
    while template.list_builds()[0].status.value not in ("ready", "failed"):
        assert time.monotonic() < until
        time.sleep(0.1)
    template.delete()
    with pytest.raises(NotFoundError):
        Template.connect("sdk/life").get_info()


def test_a_failed_build_says_why(building):
    template = Template.create(name="sdk/fails", from_="template:superserve/base", steps=[RunStep(run="echo no; exit 3")])
    with pytest.raises(BuildError) as failed:
        template.wait_until_ready()
    assert failed.value.code == "step_failed" and failed.value.template_id == template.id
    assert "exit code 3: no" in str(failed.value)
    template.delete()


@pytest.mark.skipif(UPSTREAM is None, reason="SKIPPED: SUPERSERVE_UPSTREAM names no checkout of the vendor's repository")
def test_the_vendors_live_tests_pass_unchanged(building, registry):
    _, base = building
    script = ROOT / "tests/images/python.sh"
    subprocess.run([str(script), str(base), registry, "library/python:3.11"], check=True, timeout=120)
    suite = pathlib.Path(UPSTREAM) / "tests/sdk-e2e-py"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "."]
    done = subprocess.run(command, cwd=suite, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert "12 passed" in done.stdout, done.stdout[-1000:]
