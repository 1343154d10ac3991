"""Starts one platform for all client tests and takes it down again.

The tests see what a user sees: the program, its state directory, and what `superserve client-env` prints. At the end the
machine must look as before.
"""

import contextlib
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request

import pytest
from superserve import _http

from desktop import Desktop

ROOT = pathlib.Path(__file__).resolve().parent.parent
# Starting includes namespaces, nftables and the database; the base layer is there already. Generous for a busy machine.
START_LIMIT_S = 60
STOP_LIMIT_S = 30
# Cgroups and network namespaces of dead processes go a moment later.
SETTLE_LIMIT_S = 15


def superserve_program() -> pathlib.Path:
    return pathlib.Path(os.environ.get("SUPERSERVE_BIN", ROOT / "target/debug/superserve"))


def clean_environment() -> dict[str, str]:
    """The environment without what would lead a client or the server elsewhere."""
    kept = {"SUPERSERVE_AGENT"}
    return {k: v for k, v in os.environ.items() if not k.startswith("SUPERSERVE_") or k in kept}


def own_layers(into: pathlib.Path) -> pathlib.Path:
    """A directory of layers with the ready-made ones in it; returns that of `superserve/base`. Nobody writes into the
    shared one: what a test left there would be found by the next."""
    shared = pathlib.Path(os.environ.get("SUPERSERVE_LAYERS_DIR", ROOT / "target/base-layers"))
    into.mkdir(parents=True)
    for entry in shared.glob("[!.]*"):
        if entry.is_dir():
            (into / entry.name).symlink_to(entry.resolve())
        else:
            shutil.copy(entry, into / entry.name)
    # Beside the layers, a file for each recipe names the layer it made.
    # Those of former recipes may still be there.
    recipe = max(shared.glob("base-*"), key=lambda record: record.stat().st_mtime)
    return shared / recipe.read_text().split()[0]


class Platform:
    """A running `superserve up` on a state directory of its own and on free ports."""

    def __init__(self, *flags: str) -> None:
        self.flags = flags
        self.program = superserve_program()
        self.state = pathlib.Path(tempfile.mkdtemp(prefix="ss-clients-")).resolve()
        # Beside the state directory: in one of its own the server would remove what no template refers to yet.
        self.layers = self.state.with_name(f"{self.state.name}-layers")
        self.base_layer = own_layers(self.layers)
        self.log = self.state / "test.log"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [str(self.program), "up", "--state-dir", str(self.state)]
        command += ["--listen", "127.0.0.1:0", "--edge-listen", "127.0.0.1:0", *self.flags]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment()
            )
        until = time.monotonic() + START_LIMIT_S
        while not self._ready():
            assert self.process.poll() is None, f"the server ended:\n{self.log_text()}"
            assert time.monotonic() < until, f"the server is not ready:\n{self.log_text()}"
            time.sleep(0.1)

    def _ready(self) -> bool:
        try:
            info = json.loads((self.state / "server.json").read_text())
            opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
            with opener.open(info["base_url"] + "/health", timeout=5) as answer:
                return info["pid"] == self.process.pid and answer.status == 200
        except (OSError, ValueError, urllib.error.URLError):
            return False

    def client_env(self) -> dict[str, str]:
        """Everything an unmodified client needs, as the server prints it."""
        command = [str(self.program), "client-env", "--state-dir", str(self.state), "--format", "json"]
        done = subprocess.run(command, capture_output=True, check=True, timeout=30, env=self.environment())
        return json.loads(done.stdout)

    def run(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs the command line against this state directory."""
        return subprocess.run(
            [str(self.program), *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            env=self.environment(),
        )

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")[-8000:] if self.log.exists() else ""

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            try:
                code = self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                code = "none within the time limit"
            self.process = None
            # Sandboxes outlive their server on purpose; this is the way to be rid of them.
            reset = self.run("reset", "--state-dir", str(self.state), "--yes")
            assert code == 0, f"exit code {code}:\n{self.log_text()}"
            assert reset.returncode == 0, reset.stdout + reset.stderr

    def remove(self) -> None:
        shutil.rmtree(self.state)
        shutil.rmtree(self.layers)

    def environment(self) -> dict[str, str]:
        # What `auto` would choose depends on the machine.
        isolation = {"SUPERSERVE_ISOLATION": os.environ.get("SUPERSERVE_ISOLATION", "container")}
        return clean_environment() | isolation | {"SUPERSERVE_LAYERS_DIR": str(self.layers)}


@contextlib.contextmanager
def own_platform(*flags: str):
    """A platform of some tests' own; meanwhile the Python SDK leads to it."""
    if os.geteuid() != 0:
        pytest.skip("SKIPPED: sandboxes need root")
    running = Platform(*flags)
    saved = dict(os.environ)
    try:
        running.start()
        os.environ.update(running.client_env())
        # The SDK keeps its connections, which lead to the platform of the tests before.
        _http._reset_shared_client()
        yield running
    finally:
        os.environ.clear()
        os.environ.update(saved)
        _http._reset_shared_client()
        running.stop()
        running.remove()


def remains(state: pathlib.Path) -> dict[str, list[str]]:
    """What this platform still has on the machine; only what is its own, others may be running."""
    instance = hashlib.sha256(os.fsencode(state)).hexdigest()[:12]
    own = (str(state), f"/run/superserve/{instance}", f"superserve-{instance}")
    found: dict[str, list[str]] = {"processes": [], "cgroups": [], "mounts": [], "files": []}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            # Short-lived processes come and go.
            with contextlib.suppress(OSError):
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                where = (entry / "cgroup").read_text()
                if any(name in line or name in where for name in own):
                    found["processes"].append(f"{entry.name} {line}")
    for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines():
        if any(name in line for name in own):
            found["mounts"].append(line.split()[4])
    for root, directories, _ in os.walk("/sys/fs/cgroup"):
        found["cgroups"] += [os.path.join(root, d) for d in directories if f"superserve-{instance}" in d]
    found["files"] = [str(p) for p in pathlib.Path(f"/run/superserve/{instance}").glob("**/*")]
    return {kind: names for kind, names in found.items() if names}


@pytest.fixture(scope="session")
def platform():
    """The platform of this test run."""
    if os.geteuid() != 0:
        pytest.skip("SKIPPED: sandboxes need root")
    links = set(os.listdir("/sys/class/net"))
    running = Platform()
    try:
        running.start()
        yield running
    finally:
        running.stop()
        until = time.monotonic() + SETTLE_LIMIT_S
        while (left := remains(running.state)) and time.monotonic() < until:
            time.sleep(0.2)
        new_links = set(os.listdir("/sys/class/net")) - links
        log = running.log_text()
        running.remove()
    assert not left, f"left behind: {left}\n{log}"
    assert not new_links, f"links in the host's own network: {new_links}"


@pytest.fixture(scope="session")
def desktop(platform):
    """A sandbox with a desktop, and the page of desktop.py in its browser; one for all tests of the run."""
    layers = pathlib.Path(os.environ.get("SUPERSERVE_LAYERS_DIR", ROOT / "target/base-layers"))
    if not list(layers.glob("desktop-*")):
        pytest.skip("SKIPPED: the layer of superserve/desktop is not made; scripts/test.sh makes it")
    built = platform.run("template", "--state-dir", str(platform.state), "build", "superserve/desktop")
    assert built.returncode == 0, built.stdout + built.stderr
    made = Desktop(platform, name="desktop")
    try:
        made.open_page()
        yield made
    finally:
        made.command("kill", made.id)


@pytest.fixture(scope="session")
def client_env(platform):
    """The variables of `client-env`, put into this process's environment before any SDK opens a connection."""
    variables = platform.client_env()
    saved = dict(os.environ)
    os.environ.update(variables)
    yield variables
    os.environ.clear()
    os.environ.update(saved)
