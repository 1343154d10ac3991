"""Measures `superserve mcp` against a minimal server made with the official TypeScript MCP library, in one run.

usage, as root: make deps; cargo build --release; target/clients/venv/bin/python scripts/compare-mcp.py

Both serve one tool that asks the same platform for the same sandbox. Starts and calls alternate between the two, so that what else
the machine does hits both.
"""

import json
import os
import pathlib
import shutil
import statistics
import subprocess
import sys
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))
os.environ.setdefault("SUPERSERVE_BIN", str(ROOT / "target/release/superserve"))
os.environ.setdefault("SUPERSERVE_AGENT", str(ROOT / "target/guest/bin/superserve-agent"))
os.environ.setdefault("SUPERSERVE_LAYERS_DIR", str(ROOT / "target/base-layers"))

from conftest import Platform  # noqa: E402

STARTS, WARM_UP, CALLS = 20, 20, 300
HELLO = {
    "protocolVersion": "2025-11-25",
    "capabilities": {},
    "clientInfo": {"name": "compare", "version": "1"},
}


class Server:
    """One process, spoken to in plain lines: no library of the measuring side is measured along."""

    def __init__(self, command: list[str], env: dict[str, str], directory: str) -> None:
        began = time.perf_counter()
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=env,
            cwd=directory,
        )
        self.id = 0
        self.ask("initialize", HELLO)
        self.start_ms = (time.perf_counter() - began) * 1000
        self.send({"method": "notifications/initialized"})

    def send(self, message: dict) -> None:
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method: str, params: dict) -> dict:
        self.id += 1
        self.send({"id": self.id, "method": method, "params": params})
        answer = json.loads(self.process.stdout.readline())
        assert answer["id"] == self.id and "result" in answer, answer
        return answer["result"]

    def call_ms(self, sandbox: str) -> float:
        began = time.perf_counter()
        result = self.ask("tools/call", {"name": "sandbox_info", "arguments": {"sandbox_id": sandbox}})
        took = (time.perf_counter() - began) * 1000
        assert not result.get("isError"), result
        return took

    def resident_mib(self) -> float:
        for line in pathlib.Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no VmRSS")

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


def direct_ms(base: str, key: str, sandbox: str, connection) -> float:
    began = time.perf_counter()
    connection.request("GET", f"/sandboxes/{sandbox}", headers={"x-api-key": key})
    connection.getresponse().read()
    return (time.perf_counter() - began) * 1000


def measure(platform: Platform) -> dict[str, dict[str, float]]:
    known = platform.client_env()
    base, key = known["SUPERSERVE_BASE_URL"], known["SUPERSERVE_API_KEY"]
    env = {"SUPERSERVE_API_KEY": key, "SUPERSERVE_BASE_URL": base, "PATH": os.environ["PATH"]}
    typescript = os.environ.get("SUPERSERVE_TS_TESTS", str(ROOT / "target/clients/ts"))
    commands = {
        "superserve mcp": ([str(platform.program.resolve()), "mcp"], "/"),
        "TypeScript, minimal": ([shutil.which("node"), "minimal-server.mjs"], typescript),
    }
    create = urllib.request.Request(
        base + "/sandboxes", b'{"name":"compare"}', {"x-api-key": key, "content-type": "application/json"}
    )
    with urllib.request.urlopen(create) as answer:
        sandbox = json.load(answer)["id"]

    starts: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(STARTS):
        for name, (command, directory) in commands.items():
            server = Server(command, env, directory)
            starts[name].append(server.start_ms)
            server.end()

    import http.client

    connection = http.client.HTTPConnection(base.removeprefix("http://"))
    servers = {name: Server(command, env, directory) for name, (command, directory) in commands.items()}
    idle = {name: server.resident_mib() for name, server in servers.items()}
    calls: dict[str, list[float]] = {name: [] for name in commands}
    direct: list[float] = []
    for n in range(WARM_UP + CALLS):
        took = {name: server.call_ms(sandbox) for name, server in servers.items()}
        alone = direct_ms(base, key, sandbox, connection)
        if n >= WARM_UP:
            direct.append(alone)
            for name, ms in took.items():
                calls[name].append(ms)
    result = {}
    for name, server in servers.items():
        result[name] = {
            "start to initialize answered, ms (median)": statistics.median(starts[name]),
            "start to initialize answered, ms (slowest)": max(starts[name]),
            "resident, MiB (after initialize)": idle[name],
            f"resident, MiB (after {WARM_UP + CALLS} calls)": server.resident_mib(),
            "call of sandbox_info, ms (median)": statistics.median(calls[name]),
            "added to the same request without MCP, ms (median)": statistics.median(calls[name])
            - statistics.median(direct),
        }
        server.end()
    connection.close()
    return result


def main() -> None:
    platform = Platform()
    try:
        platform.start()
        result = measure(platform)
    finally:
        platform.stop()
        platform.remove()
    names = list(result)
    print("| | " + " | ".join(names) + " |\n|---|" + "---|" * len(names))
    for row in result[names[0]]:
        print(f"| {row} | " + " | ".join(f"{result[name][row]:.2f}" for name in names) + " |")


if __name__ == "__main__":
    main()
