"""Interactive sessions of the official Python SDK, which has them in its asynchronous half only."""

import asyncio
import hashlib
import time

import pytest
import pytest_asyncio
from superserve import AsyncSandbox
from superserve.errors import SandboxError

pytestmark = pytest.mark.usefixtures("client_env")

LIMIT_S = 60


@pytest_asyncio.fixture(scope="module")
async def sandbox(client_env):
    made = await AsyncSandbox.create(name="sdk-py-spawn", env_vars={"GREETING": "hello"})
    yield made
    await made.kill()


class Screen:
    """Collects output and waits for some."""

    def __init__(self) -> None:
        self.text = ""
        self._more = asyncio.Event()

    def __call__(self, piece: str) -> None:
        self.text += piece
        self._more.set()

    async def see(self, wanted: str) -> None:
        while wanted not in self.text:
            self._more.clear()
            await asyncio.wait_for(self._more.wait(), LIMIT_S)


async def test_an_interpreter(sandbox):
    screen = Screen()
    session = await sandbox.commands.spawn("python3 -i -q -u", on_stdout=screen, env={"WHO": "agent"})
    await session.stdin.write("import os\nprint(os.environ['GREETING'], os.environ['WHO'])\n")
    await screen.see("hello agent\n")
    await session.stdin.write("print('ü🦀' * 3)\nprint(6 * 7)\n")
    await screen.see("42\n")
    assert "ü🦀ü🦀ü🦀\n" in screen.text
    await session.stdin.write("raise SystemExit(7)\n")
    result = await asyncio.wait_for(session.wait(), LIMIT_S)
    assert result.exit_code == 7
    assert result.stdout == screen.text
    began = time.monotonic()
    await session.close()
    assert time.monotonic() - began < 1


async def test_ten_mebibytes_through_cat(sandbox):
    # Text, since that is how the SDK hands output over; it checks that characters survive their frames' edges.
    text = hashlib.sha512(b"seed").hexdigest() + "ü🦀"
    sent = (text * (10 * 1024 * 1024 // len(text.encode()) + 1)).encode()
    session = await sandbox.commands.spawn("tee /tmp/through | cat")
    await session.stdin.write(sent)
    await session.stdin.close()
    result = await asyncio.wait_for(session.wait(), LIMIT_S)
    assert result.exit_code == 0
    assert hashlib.sha256(result.stdout.encode()).digest() == hashlib.sha256(sent).digest()
    there = await sandbox.commands.run("sha256sum < /tmp/through")
    assert there.stdout.split()[0] == hashlib.sha256(sent).hexdigest()
    await session.close()


async def test_streams_codes_and_places(sandbox):
    session = await sandbox.commands.spawn("pwd; echo bad >&2; exit 3", cwd="/tmp")
    result = await asyncio.wait_for(session.wait(), LIMIT_S)
    assert (result.stdout, result.stderr, result.exit_code) == ("/tmp\n", "bad\n", 3)
    session = await sandbox.commands.spawn("sleep 600", timeout_seconds=1)
    assert (await asyncio.wait_for(session.wait(), LIMIT_S)).exit_code == 124
    session = await sandbox.commands.spawn("true", cwd="/no/such/place")
    assert "/no/such/place" in (await asyncio.wait_for(session.wait(), LIMIT_S)).stderr


@pytest.mark.parametrize(("signal", "code"), [("SIGTERM", 143), ("SIGKILL", 137), ("SIGINT", 130), ("SIGUSR1", 138)])
async def test_kill(sandbox, signal, code):
    session = await sandbox.commands.spawn("sleep 600")
    await session.kill(signal)
    assert (await asyncio.wait_for(session.wait(), LIMIT_S)).exit_code == code


async def running(sandbox, pattern: str) -> bool:
    return (await sandbox.commands.run(f"pgrep -fx '{pattern}'")).exit_code == 0


async def test_closing_ends_the_command(sandbox):
    screen = Screen()
    async with await sandbox.commands.spawn("echo up; exec sleep 611", on_stdout=screen):
        await screen.see("up\n")
        assert await running(sandbox, "sleep 611")
    until = time.monotonic() + LIMIT_S
    while await running(sandbox, "sleep 611"):
        assert time.monotonic() < until
        await asyncio.sleep(0.1)


async def test_a_lost_connection_does_not(sandbox):
    screen = Screen()
    session = await sandbox.commands.spawn("echo up; exec sleep 612", on_stdout=screen)
    await screen.see("up\n")
    # What a broken network looks like; the SDK has no way of doing this itself.
    session._ws.transport.abort()
    with pytest.raises(SandboxError):
        await asyncio.wait_for(session.wait(), LIMIT_S)
    await asyncio.sleep(1)
    assert await running(sandbox, "sleep 612")
    await sandbox.commands.run("pkill -fx 'sleep 612'")


async def test_a_paused_sandbox_wakes_for_a_session():
    sandbox = await AsyncSandbox.create(name="sdk-py-spawn-paused")
    try:
        await sandbox.pause(wait=True)
        session = await sandbox.commands.spawn("echo awake")
        assert (await asyncio.wait_for(session.wait(), LIMIT_S)).stdout == "awake\n"
    finally:
        await sandbox.kill()


async def test_many_at_once(sandbox):
    sessions = await asyncio.gather(*(sandbox.commands.spawn("cat; exit $CODE", env={"CODE": str(n)}) for n in range(30)))
    for n, session in enumerate(sessions):
        await session.stdin.write(f"{n}\n")
        await session.stdin.close()
    results = await asyncio.gather(*(asyncio.wait_for(session.wait(), LIMIT_S) for session in sessions))
    assert [(r.stdout, r.exit_code) for r in results] == [(f"{n}\n", n) for n in range(30)]
