"""The official Python MCP client over HTTP: the tests of stdio once more, at both endpoints and in both eras."""

import asyncio
import contextlib
import os
import subprocess

import pytest
from mcp import Client
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client

from test_mcp import (
    fails,
    ok,
    sandbox,  # noqa: F401  a fixture
    test_arguments_are_checked_before_anything_happens,  # noqa: F401
    test_cancelling_a_call_ends_the_command,  # noqa: F401
    test_create_list_and_info,  # noqa: F401
    test_exec,  # noqa: F401
    test_exec_cuts_the_middle_and_says_so,  # noqa: F401
    test_exec_timeout_tells_what_was_printed,  # noqa: F401
    test_file_limits_and_mistakes,  # noqa: F401
    test_files,  # noqa: F401
    test_kill_is_final_and_repeatable,  # noqa: F401
    test_pause_resume_and_auto_resume,  # noqa: F401
    test_the_list_of_tools_is_short_and_plain,  # noqa: F401
    test_unknown_things_are_named_with_the_next_step,  # noqa: F401
    test_update_keeps_what_is_not_named,  # noqa: F401
)

NEWEST, NEWEST_WITH_HANDSHAKE = "2026-07-28", "2025-11-25"


@pytest.fixture(scope="module")
def served(platform):
    """`superserve mcp --http` in front of the platform; it has no key of its own."""
    variables = platform.client_env()
    env = {"SUPERSERVE_BASE_URL": variables["SUPERSERVE_BASE_URL"], "PATH": os.environ["PATH"]}
    command = [str(platform.program), "mcp", "--http", "127.0.0.1:0"]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=env, text=True)
    first = server.stderr.readline()
    url = next(word for word in first.split() if word.startswith("http://"))
    yield url
    server.terminate()
    rest = server.communicate(timeout=40)[1]
    assert server.returncode == 0, rest
    assert variables["SUPERSERVE_API_KEY"] not in first + rest


def endpoint(platform, served: str, where: str) -> str:
    return served if where == "served" else platform.client_env()["SUPERSERVE_BASE_URL"] + "/mcp"


@contextlib.asynccontextmanager
async def connected(url: str, key: str, mode: str):
    async with create_mcp_http_client(headers={"Authorization": f"Bearer {key}"}) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=mode) as client:
            yield client


@pytest.fixture(scope="module", params=[("mounted", "auto"), ("served", "legacy")], ids="-".join)
async def client(request, platform, served):
    """One connection for the whole file and endpoint. A task of its own holds it, because it must be closed where it was opened."""
    where, mode = request.param
    url, key = endpoint(platform, served, where), platform.client_env()["SUPERSERVE_API_KEY"]
    opened, done = asyncio.get_running_loop().create_future(), asyncio.Event()

    async def hold() -> None:
        try:
            async with connected(url, key, mode) as client:
                opened.set_result(client)
                await done.wait()
        except BaseException as error:
            if not opened.done():
                opened.set_exception(error)
            raise

    holder = asyncio.create_task(hold())
    client = await opened
    version = {"auto": NEWEST, "legacy": NEWEST_WITH_HANDSHAKE}[mode]
    assert client.session.protocol_version == version
    yield client
    done.set()
    await holder


async def test_progress_rises_and_ends_before_the_result(client, sandbox):  # noqa: F811
    seen: list[float] = []

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seen.append(progress)
        assert total == 30_000 and message

    arguments = {"sandbox_id": sandbox, "command": "sleep 6; echo done", "timeout_ms": 30_000}
    result = await client.call_tool("sandbox_exec", arguments, progress_callback=note)
    assert result.structured_content["stdout"] == "done\n"
    count = len(seen)
    assert count >= 2 and seen == sorted(set(seen)), seen
    await ok(client, "sandbox_list")
    assert len(seen) == count


async def test_a_call_longer_than_the_head_is_held_back(client, sandbox):  # noqa: F811
    done = await ok(client, "sandbox_exec", sandbox_id=sandbox, command="sleep 12; echo done")
    assert done["stdout"] == "done\n"


async def test_calls_run_side_by_side(client, sandbox):  # noqa: F811
    calls = (ok(client, "sandbox_exec", sandbox_id=sandbox, command=f"sleep 1; echo {n}") for n in range(10))
    assert [done["stdout"] for done in await asyncio.gather(*calls)] == [f"{n}\n" for n in range(10)]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_a_wrong_key_is_explained_at_the_first_call(platform, served, mode):
    async with connected(endpoint(platform, served, "mounted"), "ss_live_" + "0" * 32, mode) as client:
        assert (await client.list_tools()).tools
        await fails(client, "sandbox_list", "Authentication failed", "SUPERSERVE_API_KEY")
