"""Network rules and the network log by the official Python SDK. Everything here is refused: nothing leaves the machine."""

import time

import pytest
from superserve import AsyncSandbox, Sandbox
from superserve.errors import ConflictError, ValidationError
from superserve.types import NetworkConfig, NetworkVerdict

pytestmark = pytest.mark.usefixtures("client_env")

# Of a documentation network.
AWAY = "198.51.100.1"
# Rows appear within a second of the connection's end.
LOG_LIMIT_S = 2


@pytest.fixture(scope="module")
def sandbox(client_env):
    made = Sandbox.create(name="net-py", network=NetworkConfig(deny_out=["0.0.0.0/0"]))
    yield made
    made.kill()


def reach(sandbox, address: str, port: int = 80) -> int:
    command = f"timeout 5 bash -c 'exec 3<>/dev/tcp/{address}/{port} && cat <&3'"
    return sandbox.commands.run(command).exit_code


def newest(sandbox, address: str):
    until = time.monotonic() + LOG_LIMIT_S
    while time.monotonic() < until:
        events = sandbox.get_network_log(limit=1).events
        if events and events[0].dst_ip == address:
            return events[0]
        time.sleep(0.05)
    raise AssertionError(f"no row for {address}")


def test_a_refused_connection_is_a_row(sandbox):
    assert reach(sandbox, AWAY) not in (0, 124), "refused at once, not silently"
    event = newest(sandbox, AWAY)
    assert (event.kind, event.verdict, event.dst_port, event.match_rule) == ("connection", NetworkVerdict.BLOCKED, 80, "cidr")
    assert event.bytes_sent is None and event.host is None


def test_rules_read_back_and_change_for_new_connections(sandbox):
    sandbox.update(network=NetworkConfig(allow_out=["*.Example.com", "10.0.0.1", "198.51.100.0/28"], deny_out=["198.51.100.0/24"]))
    network = sandbox.get_info().network
    assert network.allow_out == ["10.0.0.1/32", "198.51.100.0/28", "*.example.com"]
    assert network.deny_out == ["198.51.100.0/24"]
    reach(sandbox, "198.51.100.77", 443)
    assert newest(sandbox, "198.51.100.77").match_rule == "cidr"
    reach(sandbox, "10.0.0.1")
    assert newest(sandbox, "10.0.0.1").match_rule == "internal-ip", "no rule opens a private address"
    # An unset list is sent as null and means an empty one.
    sandbox.update(network=NetworkConfig(deny_out=["0.0.0.0/0"]))
    network = sandbox.get_info().network
    assert (network.allow_out, network.deny_out) == (None, ["0.0.0.0/0"])
    for bad in (
        NetworkConfig(allow_out=["::1"]),
        NetworkConfig(allow_out=["*"]),
        NetworkConfig(allow_out=["https://example.com"]),
        NetworkConfig(deny_out=["example.com"]),
    ):
        with pytest.raises(ValidationError):
            sandbox.update(network=bad)


def test_the_log_pages_and_filters(sandbox):
    for n in range(2, 6):
        reach(sandbox, f"198.51.100.{n}")
    newest(sandbox, "198.51.100.5")
    seen, before = [], None
    while True:
        page = sandbox.get_network_log(limit=2, before=before)
        seen += page.events
        assert page.has_more == (page.next_cursor is not None)
        if not page.has_more:
            break
        before = page.next_cursor
    assert len(seen) >= 6 and len({event.id for event in seen}) == len(seen)
    assert [event.ts for event in seen] == sorted((event.ts for event in seen), reverse=True)
    assert sandbox.get_network_log(verdict="allowed").events == []
    assert len(sandbox.get_network_log(verdict=NetworkVerdict.BLOCKED, limit=200).events) == len(seen)
    since = seen[2].ts.isoformat()
    assert [event.id for event in sandbox.get_network_log(since=since).events] == [event.id for event in seen[:3]]
    assert [event.id for event in sandbox.get_network_log(before=since).events] == [event.id for event in seen[3:]]
    with pytest.raises(ValidationError):
        sandbox.get_network_log(limit=0)
    with pytest.raises(ValidationError):
        sandbox.get_network_log(verdict="perhaps")


def test_paused_it_can_be_read_but_not_changed(sandbox):
    sandbox.pause(wait=True)
    assert sandbox.get_network_log().events
    with pytest.raises(ConflictError):
        sandbox.update(network=NetworkConfig(allow_out=["1.1.1.1"]))
    assert sandbox.get_info().status == "paused"
    reach(sandbox, "198.51.100.9")
    assert newest(sandbox, "198.51.100.9").match_rule == "cidr", "rules survive pause and resume"


async def test_the_asynchronous_half():
    sandbox = await AsyncSandbox.create(name="net-async", network=NetworkConfig(deny_out=["0.0.0.0/0"]))
    try:
        assert (await sandbox.get_network_log()).events == []
        await sandbox.update(network=NetworkConfig(allow_out=["a.example"], deny_out=["0.0.0.0/0"]))
        assert (await sandbox.get_info()).network.allow_out == ["a.example"]
    finally:
        await sandbox.kill()
