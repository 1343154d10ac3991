"""Measures how fast images arrive and how fast sandboxes of small and large templates answer, in one run.

usage, as root: make deps; cargo build --release; python3 scripts/compare-images.py [RUNS [SANDBOXES]]

Pull and unpack: `superserve template import --image` against `skopeo copy` and `umoci unpack`, the same image of the same
registry, one after the other, each into an empty directory. Ours are on the disk when it returns; theirs are measured
without and with a flush. Sandboxes: from `POST /sandboxes` to the answer of the first command, of a template with 50 MB and
one with 2 GB in turns.
"""

import http.client
import json
import os
import pathlib
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault("SUPERSERVE_BIN", str(ROOT / "target/release/superserve"))
os.environ.setdefault("SUPERSERVE_AGENT", str(ROOT / "target/guest/bin/superserve-agent"))
BASE = pathlib.Path(os.environ.pop("SUPERSERVE_LAYERS_DIR", ROOT / "target/base-layers"))

from conftest import Platform  # noqa: E402

RUNS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
SANDBOXES = int(sys.argv[2]) if len(sys.argv) > 2 else 20
# What the measured image has of the base, one layer each.
PARTS = ["usr/lib/x86_64-linux-gnu", "usr/lib/gcc usr/lib/python3", "usr/bin usr/sbin etc", "usr/share"]


def sh(script: str, cwd: pathlib.Path, **kwargs) -> str:
    done = subprocess.run(["sh", "-ec", script], cwd=cwd, capture_output=True, text=True, **kwargs)
    assert done.returncode == 0, f"{script}: {done.stderr}"
    return done.stdout


def registry(work: pathlib.Path) -> tuple[subprocess.Popen, str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = "127.0.0.1:%d" % free.getsockname()[1]
    config = f"version: 0.1\nlog: {{level: error}}\nstorage: {{filesystem: {{rootdirectory: {work}/registry}}}}\n"
    (work / "config.yml").write_text(config + f'http: {{addr: "{address}"}}\n')
    quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(["docker-registry", "serve", str(work / "config.yml")], **quiet)
    for _ in range(200):
        try:
            socket.create_connection(tuple(address.split(":")), 1).close()
            return process, address
        except OSError:
            time.sleep(0.05)
    raise AssertionError("the registry does not answer")


def own_layers(into: pathlib.Path) -> pathlib.Path:
    """A directory of layers with the base in it; gives the base."""
    into.mkdir(parents=True)
    for entry in BASE.iterdir():
        if entry.is_dir() and not entry.name.startswith("."):
            (into / entry.name).symlink_to(entry)
        elif entry.is_file() and not entry.name.endswith("lock"):
            shutil.copy(entry, into)
    return min(entry for entry in BASE.iterdir() if len(entry.name) == 64)


def timed(work) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def shown(name: str, times: list[float], unit: float = 1) -> None:
    ordered = sorted(times)
    p95 = ordered[min(len(ordered) - 1, round(0.95 * (len(ordered) - 1)))]
    figures = [statistics.median(ordered), p95, ordered[0], ordered[-1]]
    print(f"{name:44} p50 %7.2f  p95 %7.2f  least %7.2f  most %7.2f  ({len(times)} runs)" % tuple(f * unit for f in figures))


def pulls(platform: Platform, address: str, base: pathlib.Path, work: pathlib.Path) -> None:
    sh("umoci init --layout L && umoci new --image L:1", work)
    for number, parts in enumerate(PARTS):
        there = " ".join(part for part in parts.split() if (base / part).exists())
        sh(f"tar -C {base} --owner=0 --group=0 -cf {number}.tar {there} && umoci raw add-layer --image L:1 {number}.tar", work)
        (work / f"{number}.tar").unlink()
    reference = f"{address}/measured:1"
    sh(f"skopeo --insecure-policy copy --quiet --dest-tls-verify=false oci:L:1 docker://{reference}", work)
    size = sum(file.stat().st_size for file in (work / "L/blobs/sha256").iterdir())
    ours, theirs, flushed = [], [], []
    for number in range(RUNS):
        layers = work / f"layers-{number}"
        command = [os.environ["SUPERSERVE_BIN"], "template", "--state-dir", str(platform.state), "import"]
        command += ["--image", reference, "--name", f"measured-{number}", "--layers-dir", str(layers)]
        ours.append(timed(lambda: subprocess.run(command, check=True, capture_output=True)))
        unpacked = sum(1 for _ in layers.rglob("*"))
        shutil.rmtree(layers)
        theirs.append(
            timed(
                lambda: sh(
                    f"skopeo --insecure-policy copy --quiet --src-tls-verify=false docker://{reference} oci:T:1 && "
                    "umoci raw unpack --image T:1 tree",
                    work,
                )
            )
        )
        flushed.append(theirs[-1] + timed(lambda: sh("sync -f tree", work)))
        shutil.rmtree(work / "T")
        shutil.rmtree(work / "tree")
    print(f"image: {len(PARTS)} layers, {size / 1e6:.0f} MB compressed, {unpacked} files; seconds")
    shown("superserve template import --image (flushed)", ours)
    shown("skopeo copy + umoci raw unpack", theirs)
    shown("the same, with a flush", flushed)


def first_exec(platform: Platform, template: str) -> float:
    info = json.loads((platform.state / "server.json").read_text())
    key = (platform.state / "api-key").read_text().strip()
    control = http.client.HTTPConnection(urllib.parse.urlsplit(info["base_url"]).netloc, timeout=60)
    edge = http.client.HTTPConnection(info["edge"], timeout=60)
    control.connect()
    edge.connect()
    began = time.perf_counter()
    headers = {"X-API-Key": key, "Content-Type": "application/json"}
    control.request("POST", "/sandboxes", json.dumps({"name": "m", "from_template": template}), headers)
    made = json.loads(control.getresponse().read())
    own = {"x-superserve-sandbox-id": made["id"], "x-access-token": made["access_token"]}
    edge.request("POST", "/exec", json.dumps({"command": "cat /marker"}), own | {"Content-Type": "application/json"})
    answer = json.loads(edge.getresponse().read())
    took = time.perf_counter() - began
    assert answer["stdout"] == template + "\n", answer
    control.request("DELETE", f"/sandboxes/{made['id']}", headers=headers)
    control.getresponse().read()
    return took


def sandboxes(platform: Platform, layers: pathlib.Path, work: pathlib.Path) -> None:
    sizes = {"small": (50, 5), "large": (2_000, 20_000)}
    for name, (megabytes, files) in sizes.items():
        root = work / name
        (root / "bin").mkdir(parents=True)
        shutil.copy("/bin/busybox", root / "bin/busybox")
        for tool in ["sh", "cat"]:
            (root / "bin" / tool).symlink_to("busybox")
        (root / "tmp").mkdir()
        (root / "etc").mkdir()
        (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
        (root / "marker").write_text(name + "\n")
        (root / "data").mkdir()
        for number in range(files):
            (root / "data" / str(number)).write_bytes(os.urandom(megabytes * 1_000_000 // files))
        sh(f"tar -C {name} --owner=0 --group=0 -cf {name}.tar .", work)
        shutil.rmtree(root)
        done = platform.run("template", "--state-dir", str(platform.state), "import", "--name", name,
                            "--layers-dir", str(layers), str(work / f"{name}.tar"))  # fmt: skip
        assert done.returncode == 0, done.stderr
        (work / f"{name}.tar").unlink()
    for name in sizes:
        first_exec(platform, name)
    took: dict[str, list[float]] = {name: [] for name in sizes}
    for _ in range(SANDBOXES):
        for name in sizes:
            took[name].append(first_exec(platform, name))
    for name, (megabytes, files) in sizes.items():
        shown(f"first exec, {megabytes} MB template, {files} files; ms", took[name], 1000)


def main() -> None:
    print(f"load before: {os.getloadavg()}, {os.cpu_count()} processors")
    with tempfile.TemporaryDirectory(prefix="compare-images-") as directory:
        work = pathlib.Path(directory)
        layers = work / "layers"
        base = own_layers(layers)
        process, address = registry(work)
        platform = Platform("--layers-dir", str(layers))
        try:
            platform.start()
            pulls(platform, address, base, work)
            sandboxes(platform, layers, work)
        finally:
            platform.stop()
            platform.remove()
            process.kill()
            process.wait()
    print(f"load after: {os.getloadavg()}")


main()
