"""Ports published through the official Python MCP client, and what their addresses open."""

import httpx
import pytest
from test_mcp import client, fails, ok  # noqa: F401  a fixture

UNKNOWN = "0b8e6b1e-7a34-4f0e-9d5a-1c2d3e4f5a6b"
SERVE = "cd /tmp && echo ours >page.txt && (nohup python3 -m http.server {} >/dev/null 2>&1 &) && sleep 1"


@pytest.fixture(scope="module")
async def sandbox(client):  # noqa: F811
    made = await ok(client, "sandbox_create", name="previews")
    assert made["previewAccess"] == "public"
    await ok(client, "sandbox_exec", sandbox_id=made["id"], command=SERVE.format(8000))
    yield made["id"]
    await ok(client, "sandbox_kill", sandbox_id=made["id"])


def get(url: str, **more) -> httpx.Response:
    """As a browser on this machine does it: names below localhost are this machine."""
    address = httpx.URL(url)
    host = f"{address.host}:{address.port}"
    return httpx.get(address.copy_with(host="127.0.0.1"), headers={"Host": host, **more}, trust_env=False, timeout=30)


async def test_a_public_port(client, sandbox):  # noqa: F811
    made = await ok(client, "sandbox_preview_url", sandbox_id=sandbox, port=8000)
    assert made == {
        "sandbox_id": sandbox,
        "port": 8000,
        "url": made["url"],
        "access": "public",
        "previewAccess": "public",
        "authenticated": False,
    }
    assert made["url"].startswith(f"http://8000-{sandbox}.sandbox.localhost:")
    assert get(made["url"] + "/page.txt").text == "ours\n"
    assert await ok(client, "sandbox_preview_url", sandbox_id=sandbox, port=8000) == made, "again is the same"


async def test_a_private_default_is_for_ports_published_later(client, sandbox):  # noqa: F811
    await ok(client, "sandbox_preview_url", sandbox_id=sandbox, port=8000)
    await ok(client, "sandbox_update", sandbox_id=sandbox, preview_access="private")
    (listed,) = [s for s in (await ok(client, "sandbox_list"))["sandboxes"] if s["id"] == sandbox]
    assert listed["previewAccess"] == "private"
    old = await ok(client, "sandbox_preview_url", sandbox_id=sandbox, port=8000)
    assert (old["access"], old["previewAccess"], old["authenticated"]) == ("public", "private", False)
    new = await ok(client, "sandbox_preview_url", sandbox_id=sandbox, port="8001", expires_in_seconds=600)
    assert (new["access"], new["authenticated"]) == ("private", True) and new["expires_at"].endswith("Z")
    base, query = new["url"].split("/?")
    name, token = query.split("=")
    assert name == "superserve_preview_token"
    assert get(base).status_code == 401
    assert get(base, **{"X-Superserve-Preview-Token": token}).status_code == 502, "nothing listens yet"
    await ok(client, "sandbox_exec", sandbox_id=sandbox, command=SERVE.format(8001))
    link = get(new["url"])
    assert (link.status_code, link.headers["location"]) == (302, "/")
    cookie = link.headers["set-cookie"].split(";")[0]
    assert get(f"{base}/page.txt", Cookie=cookie).text == "ours\n"


async def test_a_paused_sandbox_is_published_without_being_woken(client, sandbox):  # noqa: F811
    await ok(client, "sandbox_pause", sandbox_id=sandbox)
    made = await ok(client, "sandbox_preview_url", sandbox_id=sandbox, port=8000)
    assert get(made["url"]).status_code == 503
    assert (await ok(client, "sandbox_info", sandbox_id=sandbox))["status"] == "paused"
    await ok(client, "sandbox_resume", sandbox_id=sandbox)
    assert get(made["url"] + "/page.txt").text == "ours\n"


async def test_what_cannot_be_is_named(client, sandbox):  # noqa: F811
    for port in (0, 80, 1023, 65536, 80.5, -1):
        await fails(client, "sandbox_preview_url", "validation", "port", sandbox_id=sandbox, port=port)
    await fails(client, "sandbox_preview_url", "reserved for sandbox control traffic", sandbox_id=sandbox, port=49983)
    await fails(client, "sandbox_preview_url", "validation", sandbox_id=sandbox, port=8000, expires_in_seconds=0)
    await fails(client, "sandbox_preview_url", "not found", "sandbox_list", sandbox_id=UNKNOWN, port=8000)
