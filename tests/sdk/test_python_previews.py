"""Preview ports by the official Python SDK, both policies, and the addresses it builds."""

import time

import httpx
import pytest
from superserve import AsyncSandbox, Sandbox
from superserve.errors import AuthenticationError, ConflictError, NotFoundError, ValidationError

pytestmark = pytest.mark.usefixtures("client_env")

# What an application answers is up to it; this one says what it saw.
APP = r"""
import http.server, json, sys
class App(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def answer(self):
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        seen = {"method": self.command, "path": self.path, "body": body.decode(), "headers": list(self.headers.items())}
        text = json.dumps(seen).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
    do_GET = do_POST = do_PUT = answer
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), App).serve_forever()
"""
HEADER = "X-Superserve-Preview-Token"


def serve(sandbox, *ports: int, bind: str = "0.0.0.0") -> None:
    sandbox.files.write("/tmp/app.py", APP)
    for port in ports:
        sandbox.commands.run(f"nohup python3 /tmp/app.py {bind} {port} >/tmp/{port}.log 2>&1 &")
        ready = f"for i in $(seq 100); do curl -s -o /dev/null localhost:{port} && exit 0; sleep 0.1; done; exit 1"
        assert sandbox.commands.run(ready).exit_code == 0


@pytest.fixture(scope="module")
def public(client_env):
    made = Sandbox.create(name="previews-public")
    serve(made, 8000)
    yield made
    made.kill()


@pytest.fixture(scope="module")
def private(client_env):
    made = Sandbox.create(name="previews-private", preview_access="private")
    serve(made, 8000, 8001)
    yield made
    made.kill()


@pytest.fixture
def web(client_env):
    """A browser's view: the environment's proxy and authority, a cookie jar, redirects."""
    with httpx.Client(follow_redirects=True, timeout=30) as browser:
        yield browser


def get(url: str, **more) -> httpx.Response:
    """Without anything remembered."""
    return httpx.get(url, timeout=30, **more)


def test_a_public_port(public, web):
    assert public.preview_access == "public"
    url = public.get_preview_url(8000)
    assert (get(url).status_code, get(url).text) == (404, "this port is not published")
    port = public.publish_preview_port(8000)
    assert (port.port, port.access, port.token_version) == (8000, "public", 1)
    seen = web.get(f"{url}/a%2Fb?x=1&x=2", headers={HEADER: "rubbish", "Cookie": "a=1"}).json()
    assert seen["path"] == "/a%2Fb?x=1&x=2"
    headers = {name.lower(): value for name, value in seen["headers"]}
    assert headers["host"] == httpx.URL(url).host and headers["cookie"] == "a=1"
    assert headers["x-forwarded-proto"] == "https" and HEADER.lower() not in headers
    assert web.post(url, content=b"hello").json()["body"] == "hello"
    with pytest.raises(ConflictError):
        public.get_preview_token(8000)
    listed = public.list_preview_ports()
    assert (listed.preview_access, [p.port for p in listed.ports]) == ("public", [8000])
    public.unpublish_preview_port(8000)
    public.unpublish_preview_port(8000)
    assert get(url).status_code == 404 and public.list_preview_ports().ports == []
    again = public.publish_preview_port(8000)
    assert again.token_version > 1 and get(url).status_code == 200


def test_a_private_port_opens_with_a_link_a_header_or_a_cookie(private, web):
    assert private.get_info().preview_access == "private"
    port = private.publish_preview_port(8000)
    assert port.access == "private"
    url = private.get_preview_url(8000)
    assert get(url).status_code == 401
    link = private.get_signed_preview_url(8000)
    answer = web.get(link)
    assert answer.status_code == 200 and str(answer.url) == f"{url}/", "out of the address"
    (hop,) = answer.history
    assert hop.status_code == 302 and hop.headers["cache-control"] == "no-store"
    assert hop.headers["referrer-policy"] == "no-referrer"
    cookie = hop.headers["set-cookie"]
    assert cookie.startswith("__Host-superserve_preview_token=") and "Domain" not in cookie
    assert all(part in cookie for part in ("Path=/", "Secure", "HttpOnly", "SameSite=None", "Partitioned"))
    seen = web.get(f"{url}/next?q").json()
    assert seen["path"] == "/next?q" and "superserve_preview_token" not in str(seen), "by cookie, which stays outside"
    token = private.get_preview_token(8000, expires_in_seconds=60)
    assert (token.port, token.access, token.preview_access) == (8000, "private", "private")
    assert token.expires_at and token.header == HEADER and token.query_param == "superserve_preview_token"
    assert get(url, headers={HEADER: token.token}).status_code == 200
    posted = httpx.post(f"{url}/p", params={"a": "1", token.query_param: token.token}, content=b"x", timeout=30)
    assert posted.status_code == 200 and posted.json()["path"] == "/p?a=1", "without a redirect"


def test_what_ends_tokens_ends_them(private, web):
    private.publish_preview_port(8000)
    private.publish_preview_port(8001)
    url, sibling_url = private.get_preview_url(8000), private.get_preview_url(8001)
    sibling = private.get_preview_token(8001)

    def opens(token) -> int:
        return get(url, headers={HEADER: token.token}).status_code

    def sibling_opens() -> bool:
        return get(sibling_url, headers={HEADER: sibling.token}).status_code == 200

    assert opens(sibling) == 401, "another port"
    first = private.get_preview_token(8000)
    assert opens(first) == 200 and sibling_opens()
    assert web.get(private.get_signed_preview_url(8000)).status_code == 200
    rotated = private.rotate_preview_token(8000)
    assert rotated.token_version == first.token_version + 1 and rotated.expires_at is None
    assert (opens(first), opens(rotated)) == (401, 200)
    assert web.get(url).status_code == 401, "the cookie too"
    private.publish_preview_port(8000, access="public")
    private.publish_preview_port(8000, access="private")
    assert opens(rotated) == 401
    third = private.get_preview_token(8000)
    private.unpublish_preview_port(8000)
    assert opens(third) == 404
    private.publish_preview_port(8000)
    assert opens(third) == 401
    ending = private.get_preview_token(8000, expires_in_seconds=1)
    assert opens(ending) == 200
    time.sleep(2)
    expired = get(url, headers={HEADER: ending.token})
    assert (expired.status_code, expired.text) == (401, "the preview token has expired")
    assert sibling_opens(), "none of this concerns a sibling"


def test_tokens_of_one_kind_are_none_of_the_other(private):
    private.publish_preview_port(8000)
    url = private.get_preview_url(8000)
    data_token = private._access_token
    assert get(url, headers={HEADER: data_token}).status_code == 401
    assert get(url, headers={"X-Access-Token": data_token}).status_code == 401
    token = private.get_preview_token(8000).token
    host = f"https://boxd-{private.id}.{url.split('.', 1)[1]}"
    answer = get(f"{host}/files", params={"path": "/etc/passwd"}, headers={"X-Access-Token": token})
    assert (answer.status_code, answer.text) == (401, "invalid access token")
    assert private.commands.run("true").exit_code == 0


def test_refusals(private):
    for port in (80, 1023, 65536, 49983):
        with pytest.raises(ValidationError):
            private.publish_preview_port(port)
    with pytest.raises(NotFoundError):
        private.get_preview_token(9999)
    with pytest.raises(NotFoundError):
        private.rotate_preview_token(9999)
    url = private.get_preview_url(8000)
    for port, status in ((49983, 400), (1023, 403)):
        assert get(url.replace("//8000-", f"//{port}-")).status_code == status
    with pytest.raises(AuthenticationError):
        Sandbox.connect(private.id, api_key="ss_live_" + "x" * 32).list_preview_ports()


def test_the_default_is_for_later_ports_and_a_pause_keeps_them(private):
    private.publish_preview_port(8000)
    private.update(preview_access="public")
    try:
        assert private.publish_preview_port(8002).access == "public"
        assert private.publish_preview_port(8000).access == "private", "existing ones keep theirs"
        listed = private.list_preview_ports()
        assert listed.preview_access == "public"
        assert {p.port: p.access for p in listed.ports}[8000] == "private"
        token = private.get_preview_token(8000).token
        url = private.get_preview_url(8002)
        assert get(url).status_code == 502, "nothing listens"
        private.pause()
        paused = get(url)
        assert (paused.status_code, paused.headers["retry-after"]) == (503, "5")
        assert get(private.get_preview_url(8000)).status_code == 401, "the token comes first"
        assert get(private.get_preview_url(8003)).status_code == 404, "and before that, whether it is published"
        assert private.get_info().status == "paused"
        private.resume()
        assert get(private.get_preview_url(8000), headers={HEADER: token}).status_code == 200
    finally:
        private.update(preview_access="private")


@pytest.mark.parametrize("bind", ["0.0.0.0", "127.0.0.1", "localhost"])
def test_servers_are_reached_however_they_are_bound(public, bind):
    port = {"0.0.0.0": 8101, "127.0.0.1": 8102, "localhost": 8103}[bind]
    serve(public, port, bind=bind)
    public.publish_preview_port(port)
    assert get(public.get_preview_url(port)).status_code == 200


async def test_the_async_client_does_the_same(client_env):
    sandbox = await AsyncSandbox.create(name="previews-async", preview_access="private")
    try:
        port = await sandbox.publish_preview_port(8000)
        assert port.access == "private"
        link = await sandbox.get_signed_preview_url(8000)
        assert get(link).status_code == 302
        assert (await sandbox.rotate_preview_token(8000)).token_version == 2
        assert get(link).status_code == 401
        await sandbox.unpublish_preview_port(8000)
        assert (await sandbox.list_preview_ports()).ports == []
    finally:
        await sandbox.kill()
