"""Saved snapshots by the official Python SDK, every method it has: `sandbox.snapshot`, `sandbox.snapshots`, `Snapshot.get`, `.list`,
`.delete_by_id`, `.get_info`, `.rename`, `.delete`, `.wait_until_ready`, `create(from_snapshot=…)`, and the same of the async
classes. The TypeScript SDK that is published has none of it. At the end, the MCP tool that makes sandboxes from them."""

import uuid

import pytest
from mcp import Client, StdioServerParameters
from superserve import AsyncSandbox, AsyncSnapshot, Sandbox, Snapshot
from superserve.errors import ConflictError, NotFoundError, RateLimitError, SandboxError, ValidationError
from superserve.types import SnapshotStatus

from conftest import own_platform

UNKNOWN = "00000000-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def saving():
    """A platform of its own, so that quotas and lists have nothing of other tests."""
    with own_platform() as running:
        yield running


@pytest.fixture
def sandbox(saving):
    made = Sandbox.create(name="snapshots-py", env_vars={"PLAIN": "1"}, timeout_seconds=600)
    made.commands.run("echo common > /srv/common")
    yield made
    made.kill()


def test_the_life_of_a_snapshot(sandbox):
    snapshot = sandbox.snapshot(name="before-upgrade")
    assert (snapshot.status, snapshot.kind, snapshot.name) == (SnapshotStatus.READY, "mem+fs", "before-upgrade")
    assert (snapshot.sandbox_id, snapshot.resources.memory_mib) == (sandbox.id, sandbox.get_info().memory_mib)
    assert snapshot.size_bytes > 0 and snapshot.ready_at >= snapshot.created_at and snapshot.template_id
    # The source goes on with the token it had.
    assert sandbox.commands.run("cat /srv/common").stdout == "common\n"

    assert snapshot.wait_until_ready() is snapshot
    assert Snapshot.get(snapshot.id).name == "before-upgrade"
    assert snapshot.rename("after").get_info().name == "after"
    sandbox.pause()
    second = sandbox.snapshot()
    assert [info.id for info in sandbox.snapshots()] == [second.id, snapshot.id]
    assert [info.id for info in Snapshot.list(sandbox.id, limit=1, offset=1)] == [snapshot.id]
    assert sandbox.get_info().status == "paused"

    fork = Sandbox.create(name="fork", from_snapshot=snapshot)
    try:
        info = fork.get_info()
        assert (info.source_snapshot_id, info.timeout_seconds, info.metadata) == (snapshot.id, 600, {})
        snapshot.delete()
        snapshot.delete()
        assert fork.commands.run("cat /srv/common; echo $PLAIN").stdout == "common\n1\n"
        fork.pause()
        assert fork.commands.run("cat /srv/common").stdout == "common\n"
    finally:
        fork.kill()
    with pytest.raises(NotFoundError):
        Snapshot.get(snapshot.id)
    Snapshot.delete_by_id(second.id)
    assert sandbox.snapshots() == []


def test_keys_and_refusals(sandbox):
    key = str(uuid.uuid4())
    first = sandbox.snapshot(idempotency_key=key)
    assert sandbox.snapshot(idempotency_key=key).id == first.id
    first.delete()
    # 410 is none of the SDK's own kinds.
    with pytest.raises(SandboxError) as gone:
        sandbox.snapshot(idempotency_key=key)
    assert "idempotency_key" in str(gone.value)
    with pytest.raises(ValidationError):
        sandbox.snapshot(name="x" * 65)
    with pytest.raises(ValidationError):
        sandbox.snapshot(kind="fs")
    with pytest.raises(NotFoundError):
        Sandbox.create(name="fork", from_snapshot=UNKNOWN)
    with pytest.raises(NotFoundError):
        Snapshot.get(UNKNOWN)
    with pytest.raises(ValidationError):
        Sandbox.create(name="fork", from_snapshot=UNKNOWN, from_template="superserve/base")
    for _ in range(20):
        sandbox.snapshot()
    with pytest.raises(RateLimitError):
        sandbox.snapshot()


def test_the_list_outlives_the_sandbox(saving):
    made = Sandbox.create(name="short")
    snapshot = made.snapshot(name="kept")
    made.kill()
    assert [info.name for info in Snapshot.list(made.id)] == ["kept"]
    fork = Sandbox.create(name="fork", from_snapshot=snapshot.id)
    fork.kill()
    snapshot.delete()
    assert Snapshot.list(made.id) == []


async def test_the_async_classes(saving):
    sandbox = await AsyncSandbox.create(name="snapshots-py-async")
    try:
        await sandbox.commands.run("echo async > /srv/word")
        snapshot = await sandbox.snapshot(name="async", wait=False)
        snapshot = await snapshot.wait_until_ready()
        assert (await snapshot.get_info()).status == SnapshotStatus.READY
        assert (await snapshot.rename("other")).name == "other"
        assert [info.id for info in await sandbox.snapshots()] == [snapshot.id]
        assert [info.id for info in await AsyncSnapshot.list(sandbox.id)] == [snapshot.id]
        fork = await AsyncSandbox.create(name="fork", from_snapshot=await AsyncSnapshot.get(snapshot.id))
        try:
            assert (await fork.commands.run("cat /srv/word")).stdout == "async\n"
            with pytest.raises(ConflictError):
                await fork.resume()
        finally:
            await fork.kill()
        await snapshot.delete()
        await AsyncSnapshot.delete_by_id(snapshot.id)
    finally:
        await sandbox.kill()


async def test_mcp_makes_sandboxes_from_them(saving, sandbox):
    snapshot = sandbox.snapshot()
    variables = saving.client_env()
    env = {name: variables[name] for name in ("SUPERSERVE_API_KEY", "SUPERSERVE_BASE_URL")}
    async with Client(StdioServerParameters(command=str(saving.program), args=["mcp"], env=env)) as client:
        made = await client.call_tool("sandbox_create", {"from_snapshot": snapshot.id})
        assert not made.is_error, made
        fork = made.structured_content["id"]
        ran = await client.call_tool("sandbox_exec", {"sandbox_id": fork, "command": "cat /srv/common"})
        assert ran.structured_content["stdout"] == "common\n"
        await client.call_tool("sandbox_kill", {"sandbox_id": fork})
        for arguments, words in (
            ({"from_snapshot": UNKNOWN}, ("not found", "superserve snapshot list")),
            ({"from_snapshot": snapshot.id, "from_template": "superserve/base"}, ("exclude each other",)),
        ):
            refused = await client.call_tool("sandbox_create", arguments)
            text = " ".join(part.text for part in refused.content)
            assert refused.is_error and all(word in text for word in words), text
