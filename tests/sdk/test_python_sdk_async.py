"""The asynchronous half of the official Python SDK."""

import asyncio

import pytest
from superserve import AsyncSandbox

pytestmark = pytest.mark.usefixtures("client_env")


async def test_the_whole_life_of_a_sandbox():
    sandbox = await AsyncSandbox.create(name="sdk-py-async", metadata={"suite": "async"})
    try:
        done = await sandbox.commands.run("echo out; echo err >&2; exit 7")
        assert (done.stdout, done.stderr, done.exit_code) == ("out\n", "err\n", 7)
        pieces = []
        streamed = await sandbox.commands.run("seq 1 5", on_stdout=pieces.append)
        assert (streamed.stdout, "".join(pieces)) == ("1\n2\n3\n4\n5\n", "1\n2\n3\n4\n5\n")

        await sandbox.files.write("/tmp/async-probe.bin", b"\x00\xff\r\n")
        assert await sandbox.files.read("/tmp/async-probe.bin") == b"\x00\xff\r\n"
        assert [s.id for s in await AsyncSandbox.list(metadata={"suite": "async"})] == [sandbox.id]

        await sandbox.pause(wait=True)
        assert (await sandbox.get_info()).status == "paused"
        assert (await sandbox.commands.run("echo awake")).stdout == "awake\n"
        again = await AsyncSandbox.connect(sandbox.id)
        assert (await again.files.read_text("/etc/hostname")).strip() != ""
    finally:
        await sandbox.kill()
    await AsyncSandbox.kill_by_id(sandbox.id)


async def test_commands_run_side_by_side():
    sandbox = await AsyncSandbox.create(name="sdk-py-parallel")
    try:
        results = await asyncio.gather(*(sandbox.commands.run(f"echo {n}; exit {n}") for n in range(30)))
        assert [(r.stdout, r.exit_code) for r in results] == [(f"{n}\n", n) for n in range(30)]
    finally:
        await sandbox.kill()


async def test_commands_that_meet_a_pause_all_succeed():
    """Many callers find the sandbox paused at once: one resume, no failures."""
    sandbox = await AsyncSandbox.create(name="sdk-py-stampede")
    try:
        await sandbox.pause(wait=True)
        results = await asyncio.gather(*(sandbox.commands.run("echo awake") for _ in range(10)))
        assert {r.stdout for r in results} == {"awake\n"}
    finally:
        await sandbox.kill()
