"""A real browser opens what runs in a sandbox: a Vite development server behind a signed link, edited through MCP."""

import asyncio
import base64
import datetime
import hashlib
import os
import pathlib
import subprocess
import tempfile
import time

import pytest
from browser import Browser, Page
from conftest import ROOT, SETTLE_LIMIT_S, Platform, remains
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from test_mcp import client, ok  # noqa: F401  a fixture

VITE = ROOT / "target/clients/vite"
PORT = 5173
HTML = """<!doctype html><html><head><title>app</title><link rel="stylesheet" href="/style.css"></head><body>
<h1 id="app"></h1><img src="/dot.svg"><a id="other" href="/other.html">other</a>
<script type="module" src="/main.js"></script></body></html>"""
FILES = {
    "index.html": HTML,
    "other.html": "<!doctype html><title>other</title><p id=other>another page</p>",
    "style.css": "h1 { color: rgb(1, 2, 3) }",
    "public/dot.svg": '<svg xmlns="http://www.w3.org/2000/svg" width="7" height="7"><rect width="7" height="7"/></svg>',
    "main.js": "import { show } from './show.js';\nshow();\nimport.meta.hot.accept('./show.js', (next) => next.show());\n",
    "show.js": "export const show = () => { document.querySelector('#app').textContent = 'version 1'; };\n",
    "vite.config.js": f"export default {{ server: {{ host: 'localhost', port: {PORT}, strictPort: true }} }};\n",
}
START = (
    "cd /home/user/app && tar -xf vite.tar && rm vite.tar && (nohup node node_modules/vite/bin/vite.js >vite.log 2>&1 &) && "
    f"for i in $(seq 100); do curl -s -o /dev/null http://localhost:{PORT}/ && exit 0; sleep 0.1; done; cat vite.log; exit 1"
)


def command(platform, *arguments: str) -> str:
    done = platform.run("sandbox", "--state-dir", str(platform.state), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.strip()


async def keep_shot(page: Page, name: str) -> None:
    """For people: SUPERSERVE_TEST_SHOTS names a directory."""
    if directory := os.environ.get("SUPERSERVE_TEST_SHOTS"):
        shot = await page.send("Page.captureScreenshot", format="png")
        pathlib.Path(directory, f"{name}.png").write_bytes(base64.b64decode(shot["data"]))


def need_vite() -> None:
    if not (VITE / "node_modules/vite").exists():
        pytest.skip("SKIPPED: no Vite in target/clients/vite; scripts/install-test-deps.sh puts it there")


@pytest.fixture(scope="module")
async def vite(platform, client):  # noqa: F811
    """A sandbox with a private default in which Vite serves a small page on `localhost`."""
    need_vite()
    made = await ok(client, "sandbox_create", name="vite", preview_access="private")
    sandbox = made["id"]
    with tempfile.TemporaryDirectory() as directory:
        archive = pathlib.Path(directory, "vite.tar")
        subprocess.run(["tar", "-C", VITE, "-cf", archive, "node_modules"], check=True)
        command(platform, "cp", str(archive), f"{sandbox}:/home/user/app/vite.tar")
    for name, text in FILES.items():
        await ok(client, "sandbox_files_write", sandbox_id=sandbox, path=f"/home/user/app/{name}", content=text)
    started = await ok(client, "sandbox_exec", sandbox_id=sandbox, command=START)
    assert started["exit_code"] == 0, started
    yield sandbox
    await ok(client, "sandbox_kill", sandbox_id=sandbox)


async def test_a_signed_link_to_vite_with_hot_reload(platform, client, vite):  # noqa: F811
    link = await ok(client, "sandbox_preview_url", sandbox_id=vite, port=PORT)
    assert (link["access"], link["authenticated"]) == ("private", True)
    assert link["url"].startswith(f"http://{PORT}-{vite}.sandbox.localhost:")
    async with Browser() as browser:
        page = await browser.page()
        await page.goto(link["url"])
        await page.wait("document.querySelector('#app')?.textContent === 'version 1'")
        # The token is out of the address and of the history, and no script sees it.
        assert await page.evaluate("location.pathname + location.search + document.cookie") == "/"
        history = (await page.send("Page.getNavigationHistory"))["entries"]
        assert "superserve_preview_token" not in str([entry["url"] for entry in history]), history
        # Sub-resources came with the cookie.
        await page.wait("document.querySelector('img').naturalWidth === 7")
        await page.wait("getComputedStyle(document.querySelector('h1')).color === 'rgb(1, 2, 3)'")
        assert await page.evaluate("isSecureContext") is True
        # Hot reload: the module changes, the page stays.
        await page.evaluate("window.marker = 'stays'")
        await asyncio.sleep(0.5)
        changed = FILES["show.js"].replace("version 1", "version 2")
        await ok(client, "sandbox_files_write", sandbox_id=vite, path="/home/user/app/show.js", content=changed)
        await page.wait("document.querySelector('#app').textContent === 'version 2'")
        assert await page.evaluate("window.marker") == "stays"
        handshakes = [
            event["params"]["response"]["status"]
            for event in browser.events
            if event["method"] == "Network.webSocketHandshakeResponseReceived"
        ]
        assert handshakes == [101], handshakes
        await keep_shot(page, "preview-shot")
        # Reload, another page, and back.
        await page.send("Page.reload")
        await page.wait("window.marker === undefined && document.querySelector('#app')?.textContent === 'version 2'")
        await page.click("#other")
        await page.wait("document.querySelector('p#other')?.textContent === 'another page'")
        await page.evaluate("history.back()")
        await page.wait("location.pathname === '/' && document.querySelector('#app')?.textContent === 'version 2'")
        # The old link again, from a bookmark: still good, and again out of sight.
        await page.goto(link["url"])
        await page.wait("location.search === '' && document.querySelector('#app')?.textContent === 'version 2'")
        # Visitors are listed for the owner.
        shown = command(platform, "previews", vite)
        assert str(PORT) in shown and "private" in shown, shown
        log = command(platform, "preview", vite, str(PORT), "--log")
        assert "GET /show.js" in log and "superserve_preview_token" not in log, log
        # Rotation ends what is open, and the cookie.
        command(platform, "preview", vite, str(PORT), "--rotate")
        await page.send("Page.reload")
        await page.wait("document.title === 'This preview is private'")
    assert not platform.log_text().count("superserve_preview_token=spv1"), "no token in the log"


async def test_links_end_and_say_so(platform, client, vite):  # noqa: F811
    link = await ok(client, "sandbox_preview_url", sandbox_id=vite, port=PORT, expires_in_seconds=1)
    await asyncio.sleep(2)
    async with Browser() as browser:
        page = await browser.page()
        await page.goto(link["url"])
        await page.wait("document.title === 'This link has expired'")
        await keep_shot(page, "preview-expired")
        await page.goto(link["url"].split("/?")[0])
        await page.wait("document.title === 'This preview is private'")
        # Nothing published, and nothing listening.
        await page.goto(link["url"].replace(f"//{PORT}-", "//5174-"))
        await page.wait("document.title === 'Nothing to see at this address'")
        url = command(platform, "preview", vite, "5175", "--access", "public")
        await page.goto(url)
        await page.wait("document.title === 'Nothing is listening here yet'")
        # It looks again by itself.
        serve = "cd /tmp && (nohup python3 -m http.server 5175 --bind ::1 >/dev/null 2>&1 &)"
        await ok(client, "sandbox_exec", sandbox_id=vite, command=serve)
        await page.wait("document.title === 'Directory listing for /'")
        await ok(client, "sandbox_pause", sandbox_id=vite)
        await page.send("Page.reload")
        await page.wait("document.title === 'This sandbox is not running'")
        info = await ok(client, "sandbox_info", sandbox_id=vite)
        assert info["status"] == "paused", "visitors do not wake it"
        await ok(client, "sandbox_resume", sandbox_id=vite)
        await page.send("Page.reload")
        await page.wait("document.title === 'Directory listing for /'")


def own_certificate(directory: pathlib.Path, host: str) -> str:
    """Writes cert.pem and key.pem for a domain, and gives the hash by which the browser is told to trust them."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host)])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=30))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host), x509.DNSName(f"*.{host}")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (directory / "cert.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (directory / "key.pem").write_bytes(private)
    public = key.public_key().public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(public).digest()).decode()


async def test_a_domain_and_certificate_of_ones_own():
    if os.geteuid() != 0:
        pytest.skip("SKIPPED: sandboxes need root")
    need_vite()
    host = "box.example.test"
    platform = Platform()
    try:
        trusted = own_certificate(platform.state, host)
        settings = f'public_host = "{host}"\ntls_cert = "{platform.state}/cert.pem"\ntls_key = "{platform.state}/key.pem"\n'
        (platform.state / "superserve.toml").write_text(settings)
        platform.start()
        sandbox = command(platform, "create", "--name", "own-domain", "--preview-access", "private")
        with tempfile.TemporaryDirectory() as directory:
            for name, text in FILES.items():
                path = pathlib.Path(directory, name)
                path.parent.mkdir(exist_ok=True)
                path.write_text(text.replace("strictPort", "allowedHosts: true, strictPort"))
            subprocess.run(["tar", "-C", VITE, "-cf", f"{directory}/vite.tar", "node_modules"], check=True)
            command(platform, "cp", directory, f"{sandbox}:/home/user/app")
        command(platform, "exec", sandbox, START)
        url = command(platform, "preview", sandbox, str(PORT))
        assert url.startswith(f"https://{PORT}-{sandbox}.{host}/?superserve_preview_token=")
        edge = platform.client_env()["HTTPS_PROXY"].rsplit(":", 1)[1].strip("/")
        # What DNS and a forwarded port do for others.
        flags = [f"--host-resolver-rules=MAP *.{host} 127.0.0.1:{edge}"]
        async with Browser(*flags, f"--ignore-certificate-errors-spki-list={trusted}") as browser:
            page = await browser.page()
            await page.goto(url)
            await page.wait("document.querySelector('#app')?.textContent === 'version 1'")
            assert await page.evaluate("location.href") == f"https://{PORT}-{sandbox}.{host}/"
            assert await page.evaluate("performance.getEntriesByType('navigation')[0].nextHopProtocol") == "h2"
            (cookie,) = (await page.send("Network.getAllCookies"))["cookies"]
            assert cookie["name"] == "__Host-superserve_preview_token" and cookie["secure"] and cookie["httpOnly"]
            assert cookie["domain"] == f"{PORT}-{sandbox}.{host}" and cookie["partitionKey"], cookie
            # Hot reload, over a WebSocket beside the HTTP/2 connection.
            await page.evaluate("window.marker = 'stays'")
            await asyncio.sleep(0.5)
            command(platform, "exec", sandbox, "sed -i 's/version 1/version 2/' /home/user/app/show.js")
            await page.wait("document.querySelector('#app').textContent === 'version 2'")
            assert await page.evaluate("window.marker") == "stays"
            await page.send("Page.reload")
            await page.wait("window.marker === undefined && document.querySelector('#app')?.textContent === 'version 2'")
    finally:
        platform.stop()
        until = time.monotonic() + SETTLE_LIMIT_S
        while (left := remains(platform.state)) and time.monotonic() < until:
            await asyncio.sleep(0.2)
        log = platform.log_text()
        platform.remove()
    assert not left, f"left behind: {left}\n{log}"
