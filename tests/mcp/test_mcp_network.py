"""Network rules and the network log by the official Python MCP client. Everything here is refused."""

import asyncio

from mcp import Client, StdioServerParameters

AWAY = "198.51.100.1"


def server(platform) -> StdioServerParameters:
    variables = platform.client_env()
    env = {name: variables[name] for name in ("SUPERSERVE_API_KEY", "SUPERSERVE_BASE_URL")}
    return StdioServerParameters(command=str(platform.program), args=["mcp"], env=env)


async def call(client, tool: str, **arguments):
    result = await client.call_tool(tool, arguments)
    text = "\n".join(block.text for block in result.content if block.type == "text")
    return result.is_error, text, result.structured_content


async def ok(client, tool: str, **arguments) -> tuple[str, dict]:
    failed, text, structured = await call(client, tool, **arguments)
    assert not failed, text
    return text, structured


async def test_rules_and_log(platform):
    async with Client(server(platform)) as client:
        _, made = await ok(client, "sandbox_create", deny_out=["0.0.0.0/0"])
        sandbox = made["id"]
        try:
            _, info = await ok(client, "sandbox_info", sandbox_id=sandbox)
            assert info["network"] == {"allow_out": [], "deny_out": ["0.0.0.0/0"]}
            text, log = await ok(client, "sandbox_network_log", sandbox_id=sandbox)
            assert (text, log) == ("(no network activity)", {"events": [], "has_more": False})

            reach = f"timeout 5 bash -c 'exec 3<>/dev/tcp/{AWAY}/80 && cat <&3'"
            for _ in range(3):
                await ok(client, "sandbox_exec", sandbox_id=sandbox, command=reach)
            for _ in range(40):
                text, log = await ok(client, "sandbox_network_log", sandbox_id=sandbox, limit=2, verdict="blocked")
                if log["has_more"]:
                    break
                await asyncio.sleep(0.05)
            event = log["events"][0]
            assert (event["dstIp"], event["dstPort"], event["verdict"], event["matchRule"]) == (AWAY, 80, "blocked", "cidr")
            assert AWAY in text and "rule: cidr" in text and log["next_cursor"] in text
            _, older = await ok(client, "sandbox_network_log", sandbox_id=sandbox, before=log["next_cursor"])
            assert len(older["events"]) == 1 and not older["has_more"] and "next_cursor" not in older

            # Only the list that is passed changes.
            text, _ = await ok(client, "sandbox_update", sandbox_id=sandbox, allow_out=["*.Example.com", "1.1.1.1"])
            assert "0.0.0.0/0" in text
            _, info = await ok(client, "sandbox_info", sandbox_id=sandbox)
            assert info["network"] == {"allow_out": ["1.1.1.1/32", "*.example.com"], "deny_out": ["0.0.0.0/0"]}
            failed, text, _ = await call(client, "sandbox_update", sandbox_id=sandbox, deny_out=["example.com"])
            assert failed and "deny_out" in text and "domain" in text

            # Reading wakes nobody; a change while paused says what to do first.
            await ok(client, "sandbox_pause", sandbox_id=sandbox)
            await ok(client, "sandbox_network_log", sandbox_id=sandbox)
            failed, text, _ = await call(client, "sandbox_update", sandbox_id=sandbox, deny_out=[])
            assert failed and "sandbox_resume" in text
            _, info = await ok(client, "sandbox_info", sandbox_id=sandbox)
            assert info["status"] == "paused"
            for arguments, word in (
                ({"limit": 0}, "limit"),
                ({"verdict": "maybe"}, "verdict"),
                ({"before": 7}, "before"),
                ({"since": "yesterday"}, "RFC 3339"),
            ):
                failed, text, _ = await call(client, "sandbox_network_log", sandbox_id=sandbox, **arguments)
                assert failed and "validation" in text and word in text, text
            failed, text, _ = await call(client, "sandbox_network_log", sandbox_id=sandbox, before="row-x")
            assert failed and "next_cursor" in text
        finally:
            await ok(client, "sandbox_kill", sandbox_id=sandbox)
        failed, text, _ = await call(client, "sandbox_network_log", sandbox_id=sandbox)
        assert failed and "not found" in text and "sandbox_list" in text
