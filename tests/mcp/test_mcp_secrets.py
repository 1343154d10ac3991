"""Secrets by the official Python MCP client. There is no tool that takes or shows a value."""

import json
import os
import subprocess

from mcp import Client, StdioServerParameters

VALUE = "planted-value-of-the-mcp-suite"


def server(platform) -> StdioServerParameters:
    variables = platform.client_env()
    env = {name: variables[name] for name in ("SUPERSERVE_API_KEY", "SUPERSERVE_BASE_URL")}
    return StdioServerParameters(command=str(platform.program), args=["mcp"], env=env)


def store(platform, name: str, *arguments: str) -> None:
    command = [str(platform.program), "secret", "--state-dir", str(platform.state), "create", name, *arguments]
    env = {k: v for k, v in os.environ.items() if not k.startswith("SUPERSERVE_")}
    done = subprocess.run(command, input=VALUE, capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0 and VALUE not in done.stdout + done.stderr, done


def delete(platform, name: str) -> None:
    done = platform.run("secret", "--state-dir", str(platform.state), "delete", name)
    assert done.returncode == 0, done.stderr


async def call(client, tool: str, **arguments):
    result = await client.call_tool(tool, arguments)
    text = "\n".join(block.text for block in result.content if block.type == "text")
    assert VALUE not in text + json.dumps(result.structured_content)
    return result.is_error, text, result.structured_content


async def ok(client, tool: str, **arguments) -> tuple[str, dict]:
    failed, text, structured = await call(client, tool, **arguments)
    assert not failed, text
    return text, structured


async def fails(client, tool: str, *words: str, **arguments) -> None:
    failed, text, structured = await call(client, tool, **arguments)
    assert failed and structured is None, text
    for word in words:
        assert word in text, text


async def test_secrets_are_bound_by_name(platform):
    store(platform, "mcp-prod", "--provider", "anthropic")
    store(platform, "mcp-own", "--auth", "bearer", "--host", "api.example.com")
    async with Client(server(platform)) as client:
        for tool in (await client.list_tools()).tools:
            if "secret" in tool.name:
                assert "value" not in tool.input_schema.get("properties", {}), tool.name
        text, listed = await ok(client, "secret_list")
        rows = {row["name"]: row for row in listed["secrets"]}
        assert rows["mcp-prod"] == {
            "name": "mcp-prod",
            "authType": "api-key",
            "hosts": ["api.anthropic.com"],
            "providerShortcut": "anthropic",
        }
        assert "mcp-own\tbearer\tapi.example.com" in text

        _, made = await ok(client, "sandbox_create", secrets={"ANTHROPIC_API_KEY": "mcp-prod"})
        sandbox = made["id"]
        try:
            _, info = await ok(client, "sandbox_info", sandbox_id=sandbox)
            assert info["secrets"] == [{"env_key": "ANTHROPIC_API_KEY", "secret_name": "mcp-prod", "revoked": False}]
            _, done = await ok(client, "sandbox_exec", sandbox_id=sandbox, command='printf %s "$ANTHROPIC_API_KEY"')
            assert done["stdout"].startswith("sk-ant-api03-")

            binding = {"sandbox_id": sandbox, "env_key": "TOKEN"}
            text, echoed = await ok(client, "sandbox_attach_secret", **binding, secret_name="mcp-own")
            assert echoed == {**binding, "secret_name": "mcp-own"} and "bound secret mcp-own to TOKEN" in text
            # The same again is done already; another one is not.
            await ok(client, "sandbox_attach_secret", **binding, secret_name="mcp-own")
            await fails(client, "sandbox_attach_secret", "mcp-own", "sandbox_detach_secret", **binding, secret_name="mcp-prod")
            _, done = await ok(client, "sandbox_exec", sandbox_id=sandbox, command='printf %s "$TOKEN"')
            assert done["stdout"].startswith("ssrv_proxy_")

            # Neither wakes a paused sandbox.
            await ok(client, "sandbox_pause", sandbox_id=sandbox)
            for _ in range(2):
                _, echoed = await ok(client, "sandbox_detach_secret", **binding)
                assert echoed == binding
            await ok(client, "sandbox_attach_secret", sandbox_id=sandbox, env_key="LATER", secret_name="mcp-own")
            _, info = await ok(client, "sandbox_info", sandbox_id=sandbox)
            assert info["status"] == "paused" and {b["env_key"] for b in info["secrets"]} == {"ANTHROPIC_API_KEY", "LATER"}
            await ok(client, "sandbox_detach_secret", sandbox_id=sandbox, env_key="LATER")
            await ok(client, "sandbox_detach_secret", sandbox_id=sandbox, env_key="ANTHROPIC_API_KEY")
            _, info = await ok(client, "sandbox_info", sandbox_id=sandbox)
            assert "secrets" not in info

            await fails(client, "sandbox_attach_secret", "not found", "secret_list", **binding, secret_name="nothing")
            await fails(client, "sandbox_attach_secret", "validation", "env_key", sandbox_id=sandbox, env_key="A-B", secret_name="x")
            await fails(client, "sandbox_attach_secret", "`secret_name` is required", **binding)
            await fails(client, "sandbox_create", "secret_list", secrets={"A": "nothing"})
        finally:
            await ok(client, "sandbox_kill", sandbox_id=sandbox)
        await fails(client, "sandbox_detach_secret", "not found", "sandbox_list", **binding)
    delete(platform, "mcp-prod")
    delete(platform, "mcp-own")
