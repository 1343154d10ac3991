"""What `superserve mcp install` writes works: the entry of every client is read as the client does it, and used."""

import json
import os
import pty
import subprocess
import tomllib

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

FILES = {
    "claude-code": ".claude.json",
    "claude-desktop": ".config/Claude/claude_desktop_config.json",
    "cursor": ".cursor/mcp.json",
    "vscode": ".config/Code/User/mcp.json",
    "windsurf": ".codeium/windsurf/mcp_config.json",
    "codex": ".codex/config.toml",
}
# A person at a terminal answers soon; a program that waits for ever must not hold the tests.
LIMIT_S = 30


def command(platform, home, client: str, *options: str, **variables: str) -> dict:
    arguments = [str(platform.program), "mcp", "install", client, *options]
    return {"args": arguments, "env": {"HOME": str(home), "PATH": os.environ["PATH"], **variables}, "timeout": LIMIT_S}


def install(platform, home, client: str, *options: str, **variables: str) -> str:
    done = subprocess.run(
        **command(platform, home, client, *options, **variables), capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def entry(home, client: str) -> dict:
    text = (home / FILES[client]).read_text()
    servers = {"vscode": "servers", "codex": "mcp_servers"}.get(client, "mcpServers")
    return (tomllib.loads(text) if client == "codex" else json.loads(text))[servers]["superserve"]


def as_client(value: str, key: str) -> str:
    """What a client puts in place of the key's stand-ins."""
    for stand_in in ("${input:superserve-key}", "${env:SUPERSERVE_API_KEY}", "${SUPERSERVE_API_KEY}"):
        value = value.replace(stand_in, key)
    return value


async def works(client) -> None:
    assert len((await client.list_tools()).tools) >= 12
    result = await client.call_tool("sandbox_list", {})
    assert not result.is_error, result


@pytest.mark.parametrize("options", [(), ("--key-env",), ("--key-file",)], ids=" ".join)
@pytest.mark.parametrize("client", FILES)
async def test_a_server_on_this_machine(platform, tmp_path, client, options):
    known = platform.client_env()
    key, base = known["SUPERSERVE_API_KEY"], known["SUPERSERVE_BASE_URL"]
    if (client, options) == ("claude-desktop", ("--key-env",)):
        # It passes no variables on.
        refused = subprocess.run(**command(platform, tmp_path, client, *options, "--yes"), capture_output=True, text=True)
        assert refused.returncode == 1 and "--key-file" in refused.stderr
        return
    variables = {"SUPERSERVE_BASE_URL": base}
    if options == ("--key-file",):
        options = ("--key-file", str(platform.state / "api-key"))
    elif options == ():
        variables["SUPERSERVE_API_KEY"] = key
    shown = install(platform, tmp_path, client, "--yes", *options, **variables)
    written = entry(tmp_path, client)
    assert key not in shown and key not in json.dumps(written["args"])
    env = {name: as_client(value, key) for name, value in written.get("env", {}).items()}
    env |= {name: key for name in written.get("env_vars", [])}
    parameters = StdioServerParameters(command=written["command"], args=written["args"], env=env)
    async with Client(parameters) as opened:
        await works(opened)
    install(platform, tmp_path, client, "--yes", "--undo")
    assert not (tmp_path / FILES[client]).exists()


@pytest.mark.parametrize("client", [client for client in FILES if client != "claude-desktop"])
async def test_a_server_over_http(platform, tmp_path, client):
    # Nothing is in the environment, so the platform on this machine is meant, and its key.
    known = platform.client_env()
    url, key = known["SUPERSERVE_BASE_URL"] + "/mcp", known["SUPERSERVE_API_KEY"]
    shown = install(platform, tmp_path, client, "--yes", "--url", url, "--state-dir", str(platform.state))
    written = entry(tmp_path, client)
    assert key not in shown
    headers = {name: as_client(value, key) for name, value in written.get("headers", {}).items()}
    if client == "codex":
        assert written["bearer_token_env_var"] == "SUPERSERVE_API_KEY"
        headers = {"Authorization": f"Bearer {key}"}
    async with create_mcp_http_client(headers=headers) as http:
        async with Client(streamable_http_client(written.get("serverUrl") or written["url"], http_client=http)) as opened:
            await works(opened)


def test_nothing_happens_unless_the_user_agrees(platform, tmp_path):
    key = {"SUPERSERVE_API_KEY": "ss_live_x"}
    asked = subprocess.run(
        **command(platform, tmp_path, "cursor", **key), capture_output=True, text=True, stdin=subprocess.DEVNULL
    )
    assert asked.returncode == 1 and "--yes" in asked.stderr and "+ " in asked.stdout
    install(platform, tmp_path, "cursor", "--dry-run", **key)
    for answer, code in [("n\n", 1), ("\n", 1), ("y\n", 0)]:
        ours, theirs = pty.openpty()
        try:
            assert not (tmp_path / FILES["cursor"]).exists()
            with subprocess.Popen(
                **{k: v for k, v in command(platform, tmp_path, "cursor", **key).items() if k != "timeout"},
                stdin=theirs,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            ) as running:
                os.write(ours, answer.encode())
                said = running.communicate(timeout=LIMIT_S)[0].decode()
            assert running.returncode == code, said
        finally:
            os.close(ours)
            os.close(theirs)
    assert entry(tmp_path, "cursor")["env"]["SUPERSERVE_API_KEY"] == "ss_live_x"


def test_a_key_file_is_checked_before_it_is_used(platform, tmp_path):
    empty = tmp_path / "empty"
    empty.write_text("\n")
    for path in (empty, tmp_path / "missing"):
        done = subprocess.run(
            [str(platform.program), "mcp", "--key-file", str(path)],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=LIMIT_S,
            env={"PATH": os.environ["PATH"]},
        )
        assert done.returncode == 1 and done.stdout == b"" and str(path).encode() in done.stderr
