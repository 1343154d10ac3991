"""Template tools by the official Python MCP client: build one from commands, start a sandbox from it, see a build fail."""

import asyncio
import time

import pytest
from mcp import Client, StdioServerParameters

from test_mcp_secrets import fails, ok

BUILD_LIMIT_S = 120


def server(platform) -> StdioServerParameters:
    variables = platform.client_env()
    env = {name: variables[name] for name in ("SUPERSERVE_API_KEY", "SUPERSERVE_BASE_URL")}
    return StdioServerParameters(command=str(platform.program), args=["mcp"], env=env)


async def built(client, name: str) -> dict:
    """The row of a template once its build has ended."""
    until = time.monotonic() + BUILD_LIMIT_S
    while True:
        _, listed = await ok(client, "sandbox_template_list", name_prefix=name)
        (row,) = listed["templates"]
        if row["status"] in ("ready", "failed"):
            return row
        assert time.monotonic() < until, row
        await asyncio.sleep(0.3)


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_a_template_is_built_listed_and_used(platform, mode):
    name = f"mcp/tool-{mode}"
    async with Client(server(platform), mode=mode) as client:
        _, listed = await ok(client, "sandbox_template_list")
        assert "superserve/base" in {row["name"] for row in listed["templates"]}
        text, made = await ok(
            client,
            "sandbox_template_create",
            **{"name": name, "from": "template:superserve/base", "run_steps": ["echo built > /opt/word", "test -s /opt/word"]},
        )
        assert made["template"]["name"] == name and "sandbox_template_list" in text
        row = await built(client, name)
        assert row["status"] == "ready", row
        _, sandbox = await ok(client, "sandbox_create", from_template=name)
        try:
            _, ran = await ok(client, "sandbox_exec", sandbox_id=sandbox["id"], command="cat /opt/word")
            assert ran["stdout"] == "built\n"
        finally:
            await ok(client, "sandbox_kill", sandbox_id=sandbox["id"])
        deleted = platform.run("template", "--state-dir", str(platform.state), "delete", name)
        assert deleted.returncode == 0, deleted.stderr


async def test_a_failed_build_says_why(platform):
    async with Client(server(platform)) as client:
        arguments = {"name": "mcp/broken", "from": "template:superserve/base", "run_steps": ["exit 7"]}
        await ok(client, "sandbox_template_create", **arguments)
        row = await built(client, "mcp/broken")
        assert row["status"] == "failed", row
        await fails(client, "sandbox_create", "mcp/broken", from_template="mcp/broken")
        await fails(client, "sandbox_template_create", "superserve/", **(arguments | {"name": "superserve/mine"}))
