"""The official Python SDK, unmodified, against this server."""

import io
import time
import zipfile

import pytest
from superserve import Sandbox
from superserve.errors import AuthenticationError, ConflictError, NotFoundError, SandboxError, ValidationError

pytestmark = pytest.mark.usefixtures("client_env")

# Every byte, so that nothing on the way takes it for text.
BINARY = bytes(range(256)) * 64
UNICODE_PATH = "/home/user/naïve räksmörgås/日本語 file+100%?#&.txt"


@pytest.fixture(scope="module")
def sandbox(client_env):
    made = Sandbox.create(name="sdk-py", metadata={"suite": "python", "ü": "ö"}, env_vars={"GREETING": "hello $HOME"})
    yield made
    made.kill()


def test_a_new_sandbox_is_ready_and_described(sandbox):
    assert sandbox.status == "active"
    info = sandbox.get_info()
    assert (info.id, info.name, info.status) == (sandbox.id, "sdk-py", "active")
    assert info.metadata == {"suite": "python", "ü": "ö"}
    assert info.vcpu_count >= 1 and info.memory_mib >= 256


def test_the_base_template_has_what_agents_expect(sandbox):
    tools = "python python3 pip node npm npx git curl gcc make find sudo".split()
    for tool in tools:
        assert sandbox.commands.run(f"command -v {tool}").exit_code == 0, tool
    assert sandbox.commands.run("python --version").stdout.startswith("Python 3")
    assert sandbox.commands.run("node --version").stdout.startswith("v22.")
    sudo = sandbox.commands.run("sudo -n id -u")
    assert (sudo.stdout, sudo.stderr) == ("0\n", "")
    assert sandbox.commands.run("pip install --no-index nothing-of-that-name").stderr.count("externally-managed") == 0
    assert sandbox.commands.run("pwd && echo $HOME").stdout == "/home/user\n/home/user\n"


PACKAGES = r"""
set -e
mkdir -p /tmp/deb/DEBIAN /tmp/deb/opt /tmp/npm /tmp/pip
printf 'Package: hello-local\nVersion: 1\nArchitecture: all\nMaintainer: x <x@x>\nDescription: x\n' >/tmp/deb/DEBIAN/control
echo from-deb >/tmp/deb/opt/hello
dpkg-deb -b /tmp/deb /tmp/hello.deb >/dev/null
apt-get install -y /tmp/hello.deb >/dev/null 2>&1
cat /opt/hello
cd /tmp/npm
printf '{"name":"tp","version":"1.0.0","bin":{"tp":"tp.js"}}' >package.json
printf '#!/usr/bin/env node\nconsole.log("from-npm")\n' >tp.js
npm install --silent --offline -g . >/dev/null
tp
cd /tmp/pip
printf 'from setuptools import setup\nsetup(name="tpp", version="1", py_modules=["tpp"])\n' >setup.py
echo 'print("from-pip")' >tpp.py
pip install --quiet --no-index --no-build-isolation . >/dev/null
cd / && python -c 'import tpp'
printf 'int main(){return 5;}' >/tmp/x.c && gcc -o /tmp/x /tmp/x.c && (/tmp/x || echo from-gcc $?)
"""


def test_packages_can_be_installed(sandbox):
    done = sandbox.commands.run(PACKAGES, timeout_seconds=120)
    assert done.exit_code == 0, done
    assert done.stdout == "from-deb\nfrom-npm\nfrom-pip\nfrom-gcc 5\n"


def test_list_and_filter(sandbox):
    assert sandbox.id in [s.id for s in Sandbox.list()]
    assert [s.id for s in Sandbox.list(metadata={"suite": "python", "ü": "ö"})] == [sandbox.id]
    assert Sandbox.list(metadata={"suite": "another"}) == []
    assert sandbox.id in [s.id for s in Sandbox.list(status="active", limit=200)]
    assert sandbox.id not in [s.id for s in Sandbox.list(status="paused")]


def test_update(sandbox):
    sandbox.update(metadata={"suite": "python", "ü": "ö", "step": "2"}, timeout_seconds=3600, auto_delete_seconds=7200)
    info = sandbox.get_info()
    assert info.metadata["step"] == "2"
    assert (info.timeout_seconds, info.auto_delete_seconds) == (3600, 7200)
    sandbox.update(metadata={"suite": "python", "ü": "ö"}, timeout_seconds=None, auto_delete_seconds=None)
    info = sandbox.get_info()
    assert "step" not in info.metadata
    assert (info.timeout_seconds, info.auto_delete_seconds) == (None, None)


def test_exit_codes_and_streams(sandbox):
    run = sandbox.commands.run
    done = run("echo out; echo err >&2; exit 42")
    assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 42)
    assert run("true").exit_code == 0
    assert run("no-such-program-anywhere").exit_code == 127
    assert run("/etc/passwd").exit_code == 126
    assert run("kill -9 $$").exit_code == 137
    assert run("printf 'a\\n\\nb'").stdout == "a\n\nb"
    assert run("cat").stdout == ""
    assert run('echo "$GREETING"').stdout == "hello $HOME\n"
    assert run('echo "$GREETING $MORE"; pwd', cwd="/tmp", env={"GREETING": "x", "MORE": "ä"}).stdout == "x ä\n/tmp\n"
    late = run("echo early; sleep 30", timeout_seconds=1)
    assert (late.exit_code, late.stdout) == (124, "early\n")


def test_a_background_child_does_not_hold_the_answer(sandbox):
    done = sandbox.commands.run("sleep 60 & echo $!", timeout_seconds=10)
    assert done.exit_code == 0
    assert sandbox.commands.run(f"kill {done.stdout.strip()}").exit_code == 0


def test_output_streams_while_it_is_made(sandbox):
    out, err = [], []
    command = "for i in 1 2 3; do echo line $i; sleep 0.3; done; echo oops >&2; exit 3"
    done = sandbox.commands.run(command, on_stdout=out.append, on_stderr=err.append)
    assert done.exit_code == 3
    assert "".join(out) == "line 1\nline 2\nline 3\n" == done.stdout
    assert "".join(err) == "oops\n"
    assert len(out) >= 2, "everything came at once"


def test_files_of_any_content_and_name(sandbox):
    sandbox.files.write("/app/deep/er/data.bin", BINARY)
    assert sandbox.files.read("/app/deep/er/data.bin") == BINARY
    assert sandbox.commands.run("wc -c < /app/deep/er/data.bin").stdout == f"{len(BINARY)}\n"
    sandbox.files.write(UNICODE_PATH, "grüße ✓\r\n")
    assert sandbox.files.read_text(UNICODE_PATH) == "grüße ✓\r\n"
    assert sandbox.commands.run("cat /home/user/na*/*").stdout == "grüße ✓\r\n"
    sandbox.files.write("/tmp/empty", b"")
    assert sandbox.files.read("/tmp/empty") == b""
    sandbox.files.write("/tmp/empty", b"no more")
    assert sandbox.files.read("/tmp/empty") == b"no more"
    # No 404: the clients take that for a stale route.
    with pytest.raises(SandboxError):
        sandbox.files.read("/no/such/file")


def test_a_large_file_passes_through(sandbox):
    content = BINARY * 2048
    sandbox.files.write("/tmp/large.bin", content)
    assert sandbox.files.read("/tmp/large.bin") == content


def test_a_directory_comes_as_a_zip(sandbox):
    sandbox.files.write("/app/site/index.html", "<p>hi</p>")
    sandbox.files.write("/app/site/ünï/data.bin", BINARY)
    sandbox.commands.run("ln -s /etc/passwd /app/site/link", cwd="/app")
    archive = zipfile.ZipFile(io.BytesIO(sandbox.files.download_dir("/app/site")))
    assert archive.testzip() is None
    files = {name for name in archive.namelist() if not name.endswith("/")}
    assert files == {"site/index.html", "site/ünï/data.bin"}
    assert archive.read("site/ünï/data.bin") == BINARY


def test_pause_keeps_everything_and_exec_resumes(sandbox):
    sandbox.files.write("/home/user/kept", "kept")
    # A process with state only in memory.
    sandbox.commands.run("(i=0; while :; do i=$((i+1)); echo $i >/tmp/count; sleep 0.1; done) >/dev/null 2>&1 &")
    sandbox.pause()
    assert sandbox.get_info().status in ("pausing", "paused")
    assert sandbox.id in [s.id for s in Sandbox.list(status=["pausing", "paused"])]
    first = sandbox.commands.run("cat /home/user/kept; cat /tmp/count")
    assert first.exit_code == 0 and first.stdout.startswith("kept")
    assert sandbox.get_info().status == "active"
    before = int(first.stdout.removeprefix("kept"))
    after = int(sandbox.commands.run("sleep 1; cat /tmp/count").stdout)
    assert after > before > 0, "the process did not survive the pause"

    sandbox.pause(wait=True)
    assert sandbox.get_info().status == "paused"
    with pytest.raises(ConflictError):
        sandbox.pause(wait=True)
    assert sandbox.files.read_text("/home/user/kept") == "kept"
    sandbox.pause(wait=True)
    sandbox.resume()
    assert sandbox.get_info().status == "active"


def test_a_large_upload_wakes_a_paused_sandbox(sandbox):
    content = BINARY * 1000
    for _ in range(3):
        sandbox.pause(wait=True)
        sandbox.files.write("/home/user/woken.bin", content)
        assert sandbox.files.read("/home/user/woken.bin") == content


def test_connect_gives_a_working_handle(sandbox):
    sandbox.pause(wait=True)
    second = Sandbox.connect(sandbox.id)
    assert (second.id, second.status) == (sandbox.id, "active")
    assert second.commands.run("echo again").stdout == "again\n"
    # The first handle's token has been rotated away; the SDK heals itself.
    assert sandbox.commands.run("echo still").stdout == "still\n"


def test_an_update_by_id_does_not_wake(sandbox):
    sandbox.pause(wait=True)
    Sandbox.update_by_id(sandbox.id, metadata={"asleep": "yes"})
    info = sandbox.get_info()
    assert (info.status, info.metadata) == ("paused", {"asleep": "yes"})


def test_kill_and_kill_again():
    made = Sandbox.create(name="sdk-py-kill")
    made.kill()
    made.kill()
    Sandbox.kill_by_id(made.id)
    with pytest.raises(NotFoundError):
        Sandbox.connect(made.id)
    assert made.id not in [s.id for s in Sandbox.list()]


def test_auto_delete_at_once_on_pause():
    made = Sandbox.create(name="sdk-py-auto-delete", auto_delete_seconds=0)
    made.pause(wait=True)
    until = time.monotonic() + 10
    while made.id in [s.id for s in Sandbox.list()] and time.monotonic() < until:
        time.sleep(0.1)
    with pytest.raises(NotFoundError):
        Sandbox.connect(made.id)


def test_refusals_have_their_class(client_env):
    with pytest.raises(ValidationError, match="name"):
        Sandbox.create(name="x" * 65)
    with pytest.raises(SandboxError, match="template"):
        Sandbox.create(name="x", from_template="superserve/no-such-template")
    with pytest.raises(NotFoundError):
        Sandbox.connect("0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b")
    with pytest.raises(AuthenticationError):
        Sandbox.list(api_key="ss_live_" + "0" * 32)
