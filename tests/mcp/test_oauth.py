"""OAuth as users of hosted clients meet it: a real browser, the official client libraries' own OAuth, and a server with it on."""

import asyncio
import contextlib
import datetime
import json
import os
import pathlib
import shutil
import socket
import subprocess
import time
import urllib.parse

import httpx2
import pytest
from conftest import Platform, clean_environment, remains
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from mcp import Client
from mcp.client.auth import OAuthClientProvider
from mcp.client.streamable_http import create_mcp_http_client, streamable_http_client
from mcp.shared.auth import AuthorizationCodeResult, OAuthClientMetadata

from browser import Browser

HERE = pathlib.Path(__file__).resolve().parent.parent / "sdk/ts"
# Discovery, a browser, and a few calls; generous for a busy machine.
LIMIT_S = 120
# What ended processes leave goes a moment later.
SETTLE_LIMIT_S = 15
ALLOW, DENY = "button[value=allow]", "button[value=deny]"


@contextlib.contextmanager
def platform_with(*flags: str):
    """A platform with OAuth on; what it leaves, or writes into its log, fails the test."""
    if os.geteuid() != 0:
        pytest.skip("SKIPPED: sandboxes need root")
    running = Platform("--oauth", *flags)
    try:
        running.start()
        yield running
        log = running.log.read_text(errors="replace")
        key = (running.state / "api-key").read_text().strip()
        # The first start shows the key on stdout, which is in this file, too.
        assert log.count(key) == 1 and "ss_oauth_" not in log, "a key or a token is in the log"
    finally:
        running.stop()
        until = time.monotonic() + SETTLE_LIMIT_S
        while (left := remains(running.state)) and time.monotonic() < until:
            time.sleep(0.2)
        running.remove()
    assert not left, f"left behind: {left}"


@pytest.fixture(scope="module")
def server():
    """One for this file."""
    with platform_with() as running:
        yield running


@pytest.fixture(scope="module")
def base(server) -> str:
    return json.loads((server.state / "server.json").read_text())["base_url"]


@pytest.fixture(scope="module")
def key(server) -> str:
    return (server.state / "api-key").read_text().strip()


@pytest.fixture(scope="module")
async def browser():
    async with Browser() as running:
        yield running


class Callback:
    """The port on which a client on the user's machine waits for its code."""

    async def __aenter__(self) -> "Callback":
        self.came: asyncio.Queue[dict[str, str]] = asyncio.Queue()
        self.server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.uri = f"http://127.0.0.1:{self.server.sockets[0].getsockname()[1]}/callback"
        return self

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        path = (await reader.readline()).decode().split(" ")[1]
        if path.startswith("/callback?"):
            self.came.put_nowait(dict(urllib.parse.parse_qsl(path.split("?", 1)[1])))
        body = b"<!doctype html><title>done</title>"
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body))
        writer.write(body)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async def next(self) -> dict[str, str]:
        return await asyncio.wait_for(self.came.get(), LIMIT_S)

    async def __aexit__(self, *_) -> None:
        self.server.close()


class Memory:
    """Where a client keeps what it got."""

    tokens = client_info = None

    async def get_tokens(self):
        return self.tokens

    async def set_tokens(self, tokens) -> None:
        self.tokens = tokens

    async def get_client_info(self):
        return self.client_info

    async def set_client_info(self, client_info) -> None:
        self.client_info = client_info


async def consent(browser: Browser, url: str, key: str, button: str = ALLOW) -> None:
    """What a user does with the page; ends when the browser is back at the client."""
    page = await browser.page()
    await page.goto(url)
    await page.find(ALLOW)
    if button == ALLOW:
        await page.type("#key", key)
    await page.click(button)
    await page.wait("document.title === 'done'")
    await page.close()


class User:
    """An MCP client with the official library's OAuth, and who sits before it."""

    def __init__(self, base: str, browser: Browser, key: str, callback: Callback) -> None:
        self.base, self.browser, self.key, self.callback = base, browser, key, callback
        self.memory, self.asked, self.button = Memory(), 0, ALLOW
        metadata = OAuthClientMetadata(client_name="Test “client”", redirect_uris=[callback.uri])
        self.provider = OAuthClientProvider(f"{base}/mcp", metadata, self.memory, self._redirect, self._callback)

    async def _redirect(self, url: str) -> None:
        self.asked += 1
        await consent(self.browser, url, self.key, self.button)

    async def _callback(self) -> AuthorizationCodeResult:
        came = await self.callback.next()
        assert self.key not in json.dumps(came)
        if "error" in came:
            raise PermissionError(came["error"])
        return AuthorizationCodeResult(code=came["code"], state=came["state"], iss=came["iss"])

    @contextlib.asynccontextmanager
    async def connected(self, mode: str):
        async with create_mcp_http_client(auth=self.provider) as http:
            async with Client(streamable_http_client(f"{self.base}/mcp", http_client=http), mode=mode) as client:
                yield client


@pytest.fixture
async def user(base, browser, key):
    async with Callback() as callback:
        yield User(base, browser, key, callback)


async def call(client: Client, tool: str, **arguments):
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result.content
    return result.structured_content


def keys(server: Platform, *arguments: str):
    return server.run("key", "--state-dir", str(server.state), *arguments)


async def revoke(base: str, client_id: str, token: str) -> None:
    async with httpx2.AsyncClient() as http:
        metadata = (await http.get(f"{base}/.well-known/oauth-authorization-server")).json()
        form = {"token": token, "client_id": client_id}
        assert (await http.post(metadata["revocation_endpoint"], data=form)).status_code == 200


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_the_python_client_connects_renews_and_is_ended(server, base, user, mode):
    async with user.connected(mode) as client:
        assert len((await client.list_tools()).tools) >= 12
        assert user.asked == 1, "the page was needed once"
        sandbox = (await call(client, "sandbox_create", name="oauth"))["id"]
        ran = await call(client, "sandbox_exec", sandbox_id=sandbox, command="echo hello")
        assert ran["stdout"] == "hello\n"

        # An hour later.
        first = user.memory.tokens
        assert 3500 < first.expires_in <= 3600 and first.scope.split()[0] == "mcp"
        user.provider.context.token_expiry_time = time.time() - 1
        assert (await call(client, "sandbox_info", sandbox_id=sandbox))["id"] == sandbox
        second = user.memory.tokens
        assert second.access_token != first.access_token and second.refresh_token != first.refresh_token
        await call(client, "sandbox_kill", sandbox_id=sandbox)
        assert user.asked == 1, "renewing asks nobody"

    grants = json.loads(keys(server, "grants", "--json").stdout)
    grant = next(grant for grant in grants if grant["client_id"] == user.memory.client_info.client_id)
    assert grant["client_name"] == "Test “client”" and grant["resource"] == f"{base}/mcp"

    await revoke(base, user.memory.client_info.client_id, second.refresh_token)
    user.button = DENY
    with pytest.raises(BaseException) as refused:
        async with user.connected(mode) as client:
            await client.list_tools()
    assert user.asked == 2, "the client was refused and asked its user again"
    assert "access_denied" in repr(leaves(refused.value))


def leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for inner in error.exceptions for leaf in leaves(inner)]
    return [error]


async def test_the_operator_ends_a_connection(server, user):
    async with user.connected("auto") as client:
        await client.list_tools()
    client_id = user.memory.client_info.client_id
    grants = json.loads(keys(server, "grants", "--json").stdout)
    grant = next(grant["id"] for grant in grants if grant["client_id"] == client_id)
    done = keys(server, "revoke", grant)
    assert done.returncode == 0, done.stderr
    async with user.connected("auto") as client:
        await client.list_tools()
    assert user.asked == 2


async def test_the_typescript_client(base, browser, key):
    node = shutil.which("node")
    assert node, "node is not installed; scripts/install-test-deps.sh installs it"
    env = clean_environment() | {"SUPERSERVE_MCP_URL": f"{base}/mcp"}
    script = await asyncio.create_subprocess_exec(
        node,
        "oauth.mjs",
        cwd=os.environ.get("SUPERSERVE_TS_TESTS", HERE),
        env=env,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    seen, asked = [], 0
    try:
        async with asyncio.timeout(LIMIT_S):
            while line := (await script.stdout.readline()).decode():
                seen.append(line)
                if line.startswith("AUTHORIZE "):
                    asked += 1
                    await consent(browser, line.split()[1], key)
            errors = (await script.stderr.read()).decode()
            assert await script.wait() == 0, "".join(seen) + errors
    finally:
        if script.returncode is None:
            script.kill()
            await script.wait()
    assert seen[-1] == "DONE\n" and asked == 2, seen


async def ask_url(base: str, client_name: str, uri: str, state: str = "s") -> str:
    """Registers a client and makes the address that it would open."""
    async with httpx2.AsyncClient() as http:
        made = await http.post(f"{base}/register", json={"client_name": client_name, "redirect_uris": [uri]})
    assert made.status_code == 201, made.text
    challenge = "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM"
    params = {"response_type": "code", "client_id": made.json()["client_id"], "redirect_uri": uri, "state": state}
    params |= {"code_challenge": challenge, "code_challenge_method": "S256"}
    return f"{base}/authorize?" + urllib.parse.urlencode(params)


async def test_a_hostile_name_stays_text(base, browser, key):
    name = "</h1><img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    async with Callback() as callback:
        page = await browser.page()
        await page.goto(await ask_url(base, name, callback.uri, "\"><script>document.title='owned'</script>"))
        await page.find(ALLOW)
        shown = await page.evaluate("document.querySelector('h1').textContent")
        assert "<img src=x onerror=" in shown
        assert await page.evaluate("document.querySelectorAll('img, script, iframe').length") == 0
        assert await page.evaluate("document.title") == "Connect to Superserve"
        # The page's own style is in force, so its policy has the right hash.
        assert await page.evaluate("getComputedStyle(document.querySelector('button.yes')).fontWeight") == "600"
        await page.type("#key", "ss_live_" + "0" * 32)
        await page.click(ALLOW)
        said = await page.wait("document.querySelector('[role=alert]')?.textContent")
        assert said == "This is not a working API key."
        assert await page.evaluate("document.querySelector('#key').value") == ""
        await page.type("#key", key)
        assert key not in await page.evaluate("location.href")
        await page.click(ALLOW)
        await page.wait("document.title === 'done'")
        came = await callback.next()
        assert came["state"] == "\"><script>document.title='owned'</script>" and came["iss"] == base and "code" in came
        await page.close()


async def test_pages_of_other_sites_can_neither_frame_nor_answer_it(base, browser, key):
    """The other site is `localhost`, which to browsers is not `127.0.0.1`."""
    async with Callback() as callback:
        url = await ask_url(base, "x", callback.uri)
        # An attacker has a page of its own, with a valid form, and a key of its own.
        async with httpx2.AsyncClient() as http:
            form = (await http.get(url)).text
        sealed = form.split('name="request" value="')[1].split('"')[0]
        fields = "".join(
            f"<input name={name} value='{value}'>" for name, value in [("request", sealed), ("api_key", key), ("decision", "allow")]
        )
        attack = f"<form method=post action='{base}/authorize'>{fields}</form><iframe src='{url.replace('&', '&amp;')}'></iframe>"

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            body = attack.encode()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body))
            writer.write(body)
            await writer.drain()
            writer.close()

        evil = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with evil:
            page = await browser.page()
            # The victim has the page open, too, so that there is a cookie.
            await page.goto(url)
            await page.find(ALLOW)
            seen = len(browser.events)
            await page.goto(f"http://localhost:{evil.sockets[0].getsockname()[1]}/")
            await page.find("iframe")
            blocked = [c for c in await complaint(browser, seen) if "frame-ancestors" in c or "frame" in c.lower()]
            assert blocked, "the browser showed the page in a frame"
            await page.evaluate("document.forms[0].submit()")
            said = await page.wait("document.querySelector('[role=alert]')?.textContent")
            assert "did not come from here" in said
            await page.close()
        assert callback.came.empty()


def certificate(directory: pathlib.Path, *names: str) -> None:
    """A certificate that nobody signed; the browser of the test does not mind."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, names[0])])
    now = datetime.datetime.now(datetime.UTC)
    made = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    made = made.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(n) for n in names]), critical=False)
    (directory / "cert.pem").write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "key.pem").write_bytes(private)


@contextlib.contextmanager
def nginx(target: str, directory: pathlib.Path):
    """The proxy of the README in front of a platform, and a client's web site; gives its port."""
    program = shutil.which("nginx", path=os.environ["PATH"] + ":/usr/sbin")
    assert program, "nginx is not installed; scripts/install-test-deps.sh installs it"
    documented = (HERE.parent.parent.parent / "README.md").read_text().split("location ~ ^/(mcp")[1].split("```")[0]
    location = ("location ~ ^/(mcp" + documented).replace("http://127.0.0.1:8080", target)
    certificate(directory, "mcp.example.com", "client.example")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    paths = "".join(f"{kind}_temp_path {directory}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    tls = f"listen 127.0.0.1:{port} ssl; ssl_certificate {directory}/cert.pem; ssl_certificate_key {directory}/key.pem;"
    site = "default_type text/html; return 200 '<!doctype html><title>done</title>';"
    (directory / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {directory}/pid; error_log stderr warn; events {{}}\n"
        f"http {{ access_log off; {paths}\n"
        f"server {{ server_name mcp.example.com; {tls}\n{location}\nlocation / {{ return 404; }} }}\n"
        f"server {{ server_name client.example; {tls} location / {{ {site} }} }} }}\n"
    )
    running = subprocess.Popen([program, "-p", str(directory), "-c", str(directory / "nginx.conf")], stdin=subprocess.DEVNULL)
    try:
        until = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            assert running.poll() is None and time.monotonic() < until, "nginx does not listen"
            time.sleep(0.05)
        yield port
    finally:
        running.terminate()
        running.wait(10)


async def test_a_hosted_client_behind_the_documented_proxy(tmp_path):
    """As Claude.ai and ChatGPT do it: TLS, a web site that gets the code, and tokens used from elsewhere."""
    url, callback = "https://mcp.example.com", "https://client.example/connector/oauth/x1"
    with platform_with("--oauth-url", url) as server:
        base = json.loads((server.state / "server.json").read_text())["base_url"]
        key = (server.state / "api-key").read_text().strip()
        with nginx(base, tmp_path) as port:
            proxied = httpx2.AsyncClient(
                base_url=f"https://127.0.0.1:{port}", headers={"host": "mcp.example.com"}, verify=False
            )
            rules = f"MAP mcp.example.com:443 127.0.0.1:{port}, MAP client.example:443 127.0.0.1:{port}, MAP * ~NOTFOUND"
            flags = ("--ignore-certificate-errors", f"--host-resolver-rules={rules}, EXCLUDE 127.0.0.1")
            async with proxied as http, Browser(*flags) as browser:
                await hosted(http, browser, url, callback, key)


async def hosted(http: httpx2.AsyncClient, browser: Browser, url: str, callback: str, key: str) -> None:
    # The documented proxy shows what is needed and nothing else.
    for path in ("/sandboxes", "/health", "/metrics", "/", "/mcp/x", "/tokens"):
        assert (await http.get(path)).status_code == 404, path
    refused = await http.post("/mcp")
    assert refused.status_code == 401
    place = refused.headers["www-authenticate"].split('resource_metadata="')[1].split('"')[0]
    resource = (await http.get(place.removeprefix(url))).json()
    assert resource["resource"] == f"{url}/mcp" and resource["authorization_servers"] == [url]
    metadata = (await http.get("/.well-known/oauth-authorization-server")).json()
    made = await http.post("/register", json={"client_name": "Hosted", "redirect_uris": [callback]})
    client_id, verifier = made.json()["client_id"], "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk"
    params = {"response_type": "code", "client_id": client_id, "redirect_uri": callback, "state": "the state"}
    params |= {"code_challenge": "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM", "code_challenge_method": "S256"}
    asked = metadata["authorization_endpoint"] + "?" + urllib.parse.urlencode(params | {"resource": f"{url}/mcp"})

    page = await browser.page()
    await page.goto(asked)
    await page.find(ALLOW)
    assert "client.example" in await page.evaluate("document.querySelector('.to').textContent")
    await page.type("#key", "wrong")
    await page.click(ALLOW)
    await page.wait("document.querySelector('[role=alert]')?.textContent")
    await page.type("#key", key)
    await page.click(ALLOW)
    await page.wait("document.title === 'done'")
    came = urllib.parse.urlsplit(await page.evaluate("location.href"))
    answer = dict(urllib.parse.parse_qsl(came.query))
    assert came._replace(query="").geturl() == callback
    assert answer["state"] == "the state" and answer["iss"] == url and key not in came.query
    assert await page.evaluate("document.referrer") == "", "the site does not learn where its user came from"
    # A request that is not in order does not send the browser to a site by itself.
    await page.goto(asked.replace("code_challenge_method=S256", "code_challenge_method=plain"))
    await page.wait("document.querySelector('[role=alert]')?.textContent.includes('S256')")
    await page.click("a")
    await page.wait("document.title === 'done'")
    assert "error=invalid_request" in await page.evaluate("location.search")
    await page.close()

    form = {"grant_type": "authorization_code", "client_id": client_id, "code": answer["code"]}
    form |= {"code_verifier": verifier, "redirect_uri": callback, "resource": f"{url}/mcp"}
    tokens = (await http.post(metadata["token_endpoint"].removeprefix(url), data=form)).json()
    headers = {"authorization": f"Bearer {tokens['access_token']}", "accept": "application/json, text/event-stream"}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "sandbox_list"}}
    called = await http.post("/mcp", json=call, headers=headers)
    assert called.status_code == 200 and "isError" not in called.json()["result"], called.text


async def complaint(browser: Browser, since: int) -> list[str]:
    until = time.monotonic() + 10
    while time.monotonic() < until:
        found = [e["params"]["entry"]["text"] for e in browser.events[since:] if e["method"] == "Log.entryAdded"]
        if found:
            return found
        await asyncio.sleep(0.05)
    return []
