"""The official Python MCP client drives every listed tool of `superserve mcp` over stdio."""

import asyncio
import base64
import contextlib
import io
import json
import subprocess
import time
import zipfile

import pytest
from mcp import Client, StdioServerParameters

# In the order of the product, which is also the order of the list.
PRODUCT = """
    sandbox_create sandbox_template_list sandbox_template_create sandbox_list sandbox_info sandbox_pause sandbox_resume
    sandbox_kill sandbox_update sandbox_preview_url sandbox_network_log sandbox_exec sandbox_files_read
    sandbox_files_write sandbox_files_list sandbox_files_download_dir secret_list sandbox_attach_secret
    sandbox_detach_secret sandbox_computer
""".split()
# Within this time after its call was cancelled a command is dead.
CANCELLED_S = 2
UNKNOWN = "0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b"
UNICODE_PATH = "/home/user/naïve räksmörgås/日本語 'file'.txt"


def server(platform, **changes) -> StdioServerParameters:
    """As a user's client configuration starts it: the program, the key and the address, nothing else."""
    variables = platform.client_env()
    env = {name: variables[name] for name in ("SUPERSERVE_API_KEY", "SUPERSERVE_BASE_URL")} | changes
    return StdioServerParameters(command=str(platform.program), args=["mcp"], env=env)


@pytest.fixture(scope="module")
async def client(platform):
    """One connection for the whole file. A task of its own holds it, because it must be closed where it was opened."""
    connected, done = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def hold() -> None:
        try:
            async with Client(server(platform)) as opened:
                connected.set_result(opened)
                await done.wait()
        except BaseException as error:
            if not connected.done():
                connected.set_exception(error)
            raise

    holder = asyncio.create_task(hold())
    yield await connected
    done.set()
    await holder


@pytest.fixture(scope="module")
async def sandbox(client):
    made = await ok(client, "sandbox_create", name="mcp", metadata={"suite": "mcp"}, env_vars={"GREETING": "hello"})
    yield made["id"]
    await ok(client, "sandbox_kill", sandbox_id=made["id"])


def text_of(result) -> str:
    return "\n".join(block.text for block in result.content if block.type == "text")


async def ok(client, tool: str, **arguments) -> dict:
    """Calls a tool that must succeed; both forms of the result must be there."""
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, f"{tool}: {text_of(result)}"
    assert text_of(result)
    return result.structured_content


async def fails(client, tool: str, *words: str, **arguments) -> str:
    """Calls a tool that must fail with a text that says what to do."""
    result = await client.call_tool(tool, arguments)
    text = text_of(result)
    assert result.is_error, f"{tool}: {text}"
    assert result.structured_content is None
    for word in words:
        assert word.lower() in text.lower(), f"{tool}: {word!r} is missing in: {text}"
    assert len(text) < 2000 and "panicked" not in text and "ss_live_" not in text.replace("`ss_live_`", "")
    return text


async def test_the_list_of_tools_is_short_and_plain(client):
    tools = (await client.list_tools()).tools
    names = [tool.name for tool in tools]
    assert names == PRODUCT
    for tool in tools:
        schema = json.dumps(tool.input_schema)
        assert tool.title and tool.description, tool.name
        assert tool.input_schema["type"] == "object" and tool.input_schema["additionalProperties"] is False, tool.name
        assert not any(word in schema for word in ("$ref", "$defs", "prefixItems")), tool.name
        for name, about in tool.input_schema.get("properties", {}).items():
            assert about.get("description"), f"{tool.name}.{name}"
        assert tool.annotations.open_world_hint is True, tool.name
    hints = {t.name: (t.annotations.read_only_hint, t.annotations.destructive_hint) for t in tools}
    assert hints["sandbox_kill"] == (False, True)
    assert hints["sandbox_update"] == (False, True)
    assert hints["sandbox_exec"] == (False, False)
    assert hints["sandbox_info"] == (True, False)
    plain = [tool.model_dump(by_alias=True, exclude_none=True) for tool in tools]
    assert len(json.dumps({"tools": plain}, separators=(",", ":"), ensure_ascii=False).encode()) < 20_480


async def test_create_list_and_info(client, sandbox):
    rows = (await ok(client, "sandbox_list", metadata={"suite": "mcp"}))["sandboxes"]
    assert [(r["id"], r["name"], r["status"]) for r in rows] == [(sandbox, "mcp", "active")]
    assert (await ok(client, "sandbox_list", metadata={"suite": "none"}))["sandboxes"] == []
    info = await ok(client, "sandbox_info", sandbox_id=sandbox)
    assert (info["id"], info["status"], info["metadata"]) == (sandbox, "active", {"suite": "mcp"})
    assert "access_token" not in json.dumps(info)


async def test_update_keeps_what_is_not_named(client, sandbox):
    await ok(client, "sandbox_update", sandbox_id=sandbox, timeout_seconds=3600, auto_delete_seconds=60)
    info = await ok(client, "sandbox_info", sandbox_id=sandbox)
    assert (info["timeout_seconds"], info["auto_delete_seconds"]) == (3600, 60)
    await ok(client, "sandbox_update", sandbox_id=sandbox, auto_delete_seconds=None)
    info = await ok(client, "sandbox_info", sandbox_id=sandbox)
    assert info["timeout_seconds"] == 3600 and "auto_delete_seconds" not in info
    await fails(client, "sandbox_update", "nothing to update", sandbox_id=sandbox)


async def test_exec(client, sandbox):
    done = await ok(client, "sandbox_exec", sandbox_id=sandbox, command="echo out; echo err >&2; exit 3")
    assert (done["stdout"], done["stderr"], done["exit_code"], done["truncated"]) == ("out\n", "err\n", 3, False)
    done = await ok(
        client, "sandbox_exec", sandbox_id=sandbox, command='echo "$GREETING $A"; pwd', cwd="/tmp", env={"A": "ä"}
    )
    assert done["stdout"] == "hello ä\n/tmp\n"
    # Models write integers in their own ways.
    done = await client.call_tool("sandbox_exec", {"sandbox_id": sandbox, "command": "true", "timeout_ms": "5000"})
    assert not done.is_error


async def test_exec_cuts_the_middle_and_says_so(client, sandbox):
    command = "echo first; head -c 100000 /dev/zero | tr '\\0' ä; echo; echo last"
    result = await client.call_tool("sandbox_exec", {"sandbox_id": sandbox, "command": command})
    done = result.structured_content
    assert done["truncated"] is True
    assert len(done["stdout"].encode()) <= 32_768
    assert done["stdout"].startswith("first\n") and done["stdout"].endswith("last\n")
    assert "bytes truncated" in done["stdout"]
    assert done["stdout_bytes"] > 100_000 and str(done["stdout_bytes"]) in text_of(result)


async def test_exec_timeout_tells_what_was_printed(client, sandbox):
    started = time.monotonic()
    await fails(
        client,
        "sandbox_exec",
        "timed out",
        "timeout_ms",
        "early",
        sandbox_id=sandbox,
        command="echo early; sleep 60",
        timeout_ms=1000,
    )
    assert time.monotonic() - started < 20


async def test_cancelling_a_call_ends_the_command(client, sandbox):
    command = "echo $$ >/tmp/cancelled.pid; exec sleep 300"
    call = asyncio.create_task(client.call_tool("sandbox_exec", {"sandbox_id": sandbox, "command": command}))
    running = "kill -0 $(cat /tmp/cancelled.pid)"
    await until(client, sandbox, running, 0)
    call.cancel()
    started = time.monotonic()
    with contextlib.suppress(asyncio.CancelledError):
        await call
    await until(client, sandbox, running, 1)
    assert time.monotonic() - started < CANCELLED_S
    # The connection is as good as before.
    assert (await ok(client, "sandbox_exec", sandbox_id=sandbox, command="echo fine"))["stdout"] == "fine\n"


async def until(client, sandbox: str, command: str, exit_code: int) -> None:
    """Waits until a command ends in this way."""
    for _ in range(100):
        done = await ok(client, "sandbox_exec", sandbox_id=sandbox, command=command)
        if done["exit_code"] == exit_code:
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"{command!r} never ended with {exit_code}")


async def test_files(client, sandbox):
    binary = bytes(range(256))
    written = await ok(
        client,
        "sandbox_files_write",
        sandbox_id=sandbox,
        path="/app/data.bin",
        content=base64.b64encode(binary).decode(),
        encoding="base64",
    )
    assert written["bytes"] == 256
    read = await ok(client, "sandbox_files_read", sandbox_id=sandbox, path="/app/data.bin", encoding="base64")
    assert base64.b64decode(read["content"]) == binary and read["bytes"] == 256
    await ok(client, "sandbox_files_write", sandbox_id=sandbox, path=UNICODE_PATH, content="grüße\r\n")
    read = await ok(client, "sandbox_files_read", sandbox_id=sandbox, path=UNICODE_PATH)
    assert read["content"] == "grüße\r\n"

    await ok(client, "sandbox_exec", sandbox_id=sandbox, command="mkdir -p '/app/odd/a\nb' && ln -s x /app/odd/link")
    await ok(client, "sandbox_files_write", sandbox_id=sandbox, path="/app/odd/.hidden", content="")
    entries = (await ok(client, "sandbox_files_list", sandbox_id=sandbox, path="/app/odd"))["entries"]
    found = {e["name"]: e["type"] for e in entries}
    assert found == {"a\nb": "directory", "link": "symlink", ".hidden": "file"}

    result = await client.call_tool("sandbox_files_download_dir", {"sandbox_id": sandbox, "path": "/app"})
    done = result.structured_content
    assert (done["format"], done["encoding"]) == ("zip", "base64")
    assert "downloaded /app as a zip" in text_of(result) and done["content"] not in text_of(result)
    archive = zipfile.ZipFile(io.BytesIO(base64.b64decode(done["content"])))
    assert archive.read("app/data.bin") == binary


async def test_file_limits_and_mistakes(client, sandbox):
    await ok(client, "sandbox_exec", sandbox_id=sandbox, command="head -c 1048577 /dev/zero >/tmp/big")
    await fails(client, "sandbox_files_read", "larger than", "/tmp/big", "head -c", sandbox_id=sandbox, path="/tmp/big")
    await ok(client, "sandbox_exec", sandbox_id=sandbox, command="truncate -s 1048576 /tmp/big")
    assert (await ok(client, "sandbox_files_read", sandbox_id=sandbox, path="/tmp/big"))["bytes"] == 1_048_576
    await fails(client, "sandbox_files_read", "sandbox_files_list", sandbox_id=sandbox, path="/no/such/file")
    await fails(client, "sandbox_files_read", "absolute", sandbox_id=sandbox, path="relative")
    await fails(client, "sandbox_files_read", "..", sandbox_id=sandbox, path="/tmp/../etc/passwd")
    await fails(client, "sandbox_files_list", "/no/such/dir", sandbox_id=sandbox, path="/no/such/dir")
    await fails(client, "sandbox_files_download_dir", "sandbox_files_read", sandbox_id=sandbox, path="/tmp/big")
    await fails(
        client,
        "sandbox_files_write",
        "base64",
        sandbox_id=sandbox,
        path="/tmp/never",
        content="not base64!",
        encoding="base64",
    )
    gone = await ok(client, "sandbox_exec", sandbox_id=sandbox, command="test -e /tmp/never")
    assert gone["exit_code"] == 1
    await ok(client, "sandbox_exec", sandbox_id=sandbox, command="mkdir /tmp/zip; head -c 11M /dev/urandom >/tmp/zip/x")
    await fails(client, "sandbox_files_download_dir", "10", "more than", sandbox_id=sandbox, path="/tmp/zip")


async def test_arguments_are_checked_before_anything_happens(client, sandbox):
    await fails(client, "sandbox_exec", "validation", "command", sandbox_id=sandbox)
    await fails(client, "sandbox_exec", "validation", "sandbox_id", "command")
    await fails(client, "sandbox_create", "validation", "604800", timeout_seconds=604_801)
    await fails(client, "sandbox_info", "sandbox_list", sandbox_id="../secrets")
    result = await client.call_tool("sandbox_list", {"metdata": {}})
    assert not result.is_error and "metadata" in text_of(result)


async def test_unknown_things_are_named_with_the_next_step(client):
    for tool, more in {
        "sandbox_info": {},
        "sandbox_exec": {"command": "true"},
        "sandbox_files_read": {"path": "/etc/passwd"},
        "sandbox_pause": {},
        "sandbox_resume": {},
    }.items():
        await fails(client, tool, "not found", "sandbox_list", sandbox_id=UNKNOWN, **more)
    await fails(client, "sandbox_create", "not found", name="x", from_template="superserve/no-such-template")
    # Gone is what was wanted.
    assert (await ok(client, "sandbox_kill", sandbox_id=UNKNOWN))["deleted"] is True


async def test_pause_resume_and_auto_resume(client, sandbox):
    assert (await ok(client, "sandbox_pause", sandbox_id=sandbox))["status"] == "paused"
    assert (await ok(client, "sandbox_pause", sandbox_id=sandbox))["status"] == "paused"
    # Looking and changing settings wake nobody.
    await ok(client, "sandbox_update", sandbox_id=sandbox, metadata={"suite": "mcp"})
    assert (await ok(client, "sandbox_info", sandbox_id=sandbox))["status"] == "paused"
    done = await ok(client, "sandbox_exec", sandbox_id=sandbox, command="echo awake")
    assert done["stdout"] == "awake\n"
    assert (await ok(client, "sandbox_info", sandbox_id=sandbox))["status"] == "active"
    await ok(client, "sandbox_pause", sandbox_id=sandbox)
    assert (await ok(client, "sandbox_resume", sandbox_id=sandbox))["status"] == "active"
    assert (await ok(client, "sandbox_resume", sandbox_id=sandbox))["status"] == "active"


async def test_kill_is_final_and_repeatable(client):
    made = await ok(client, "sandbox_create")
    assert made["name"].startswith("sandbox-")
    for _ in range(2):
        assert (await ok(client, "sandbox_kill", sandbox_id=made["id"]))["deleted"] is True
    await fails(client, "sandbox_exec", "not found", "sandbox_list", sandbox_id=made["id"], command="true")


async def test_a_wrong_key_is_explained_at_the_first_call(platform):
    async with Client(server(platform, SUPERSERVE_API_KEY="ss_live_" + "0" * 32)) as client:
        assert (await client.list_tools()).tools
        await fails(client, "sandbox_list", "Authentication failed", "SUPERSERVE_API_KEY")


async def test_an_absent_platform_is_explained(platform):
    async with Client(server(platform, SUPERSERVE_BASE_URL="http://127.0.0.1:9")) as client:
        await fails(client, "sandbox_list", "SUPERSERVE_BASE_URL")


async def test_the_older_handshake_works_too(platform):
    async with Client(server(platform), mode="legacy") as client:
        assert {tool.name for tool in (await client.list_tools()).tools} == set(PRODUCT)


def test_without_a_key_it_says_what_to_do(platform):
    done = subprocess.run(
        [str(platform.program), "mcp"], input=b"", capture_output=True, timeout=10, env={"PATH": "/usr/bin:/bin"}
    )
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"SUPERSERVE_API_KEY" in done.stderr and b"env" in done.stderr


def test_stdout_carries_nothing_but_the_protocol(platform):
    variables = platform.client_env()
    lines = [b"this is no JSON", b"{}", b'{"jsonrpc":"2.0","id":1,"method":"no/such/method"}', b"\xff\xfe"]
    env = {"SUPERSERVE_API_KEY": variables["SUPERSERVE_API_KEY"], "SUPERSERVE_BASE_URL": variables["SUPERSERVE_BASE_URL"]}
    done = subprocess.run(
        [str(platform.program), "mcp"], input=b"\n".join(lines) + b"\n", capture_output=True, timeout=20, env=env
    )
    for line in done.stdout.splitlines():
        assert json.loads(line)["jsonrpc"] == "2.0", line
    assert variables["SUPERSERVE_API_KEY"].encode() not in done.stderr
