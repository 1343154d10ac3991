"""A page in a browser on the desktop of a sandbox that writes down everything that happens to it, and how to read that back."""

import json
import time

import httpx

PORT = 8123
# A browser starting on a busy machine, and the longest wait for an event to be written down.
START_LIMIT_S = 60
LIMIT_S = 15
# Where things are on the page, which fills the screen: left, top, width, height.
PLACES = {
    "button": (40, 40, 120, 40),
    "input": (200, 40, 400, 30),
    "area": (40, 110, 600, 120),
    "words": (40, 250, 600, 40),
    "scroll": (40, 310, 400, 300),
    "canvas": (700, 40, 400, 300),
    "moving": (700, 380, 200, 100),
    "keys": (480, 310, 160, 60),
}

PAGE = """<!doctype html><meta charset="utf-8"><title>page</title>
<style>
  body { margin: 0; background: #f4f4f0; font: 16px sans-serif; overflow: hidden }
  body > * { position: absolute; box-sizing: border-box; margin: 0 }
  #scroll { overflow: scroll; background: #dde } #scroll div { width: 3000px; height: 3000px;
    background: repeating-linear-gradient(45deg, #bcd 0 40px, #def 40px 80px) }
  #canvas, #moving { background: white; border: 0 } #keys { background: #fdd; outline: none } #keys:focus { background: #dfd }
  textarea { resize: none }
</style>
<button id="button">press</button><input id="input"><textarea id="area" spellcheck="false"></textarea>
<p id="words">alpha beta gamma delta</p><div id="scroll"><div></div></div><canvas id="canvas"></canvas>
<canvas id="moving"></canvas><div id="keys" tabindex="0">keys</div>
<script>
const places = PLACES;
for (const [id, [x, y, w, h]] of Object.entries(places)) {
  const e = document.getElementById(id);
  Object.assign(e.style, {left: x + 'px', top: y + 'px', width: w + 'px', height: h + 'px'});
  if (e.getContext) { e.width = w; e.height = h }
}
let n = 0, waiting = [], sending = false;
async function send() {
  if (sending) return;
  sending = true;
  while (waiting.length) {
    const batch = waiting; waiting = [];
    await fetch('/events', {method: 'POST', body: JSON.stringify(batch)});
  }
  sending = false;
}
function note(kind, more) { waiting.push({n: n++, kind, ...more}); send() }
const held = e => [e.ctrlKey && 'ctrl', e.altKey && 'alt', e.shiftKey && 'shift', e.metaKey && 'super'].filter(Boolean);
for (const kind of ['mousedown', 'mouseup', 'click', 'dblclick', 'auxclick', 'contextmenu'])
  document.addEventListener(kind, e => {
    if (kind == 'contextmenu' || e.button == 1) e.preventDefault();
    note(kind, {on: e.target.id, x: e.clientX, y: e.clientY, screenX: e.screenX, screenY: e.screenY, button: e.button,
      detail: e.detail, held: held(e), selected: String(getSelection())});
  }, true);
const pen = document.getElementById('canvas').getContext('2d');
document.getElementById('canvas').addEventListener('mousemove', e => {
  note('mousemove', {on: 'canvas', x: e.clientX, y: e.clientY, buttons: e.buttons});
  if (e.buttons & 1) pen.fillRect(e.offsetX - 3, e.offsetY - 3, 6, 6);
});
// What is drawn leaves the focus where it is.
document.getElementById('canvas').addEventListener('mousedown', e => e.preventDefault());
document.addEventListener('wheel', e => note('wheel', {on: e.target.parentNode.id || e.target.id, dx: e.deltaX, dy: e.deltaY, held: held(e)}), true);
document.getElementById('scroll').addEventListener('scroll', e => note('scroll', {left: e.target.scrollLeft, top: e.target.scrollTop}));
for (const kind of ['keydown', 'keyup'])
  document.getElementById('keys').addEventListener(kind, e => { e.preventDefault(); note(kind, {key: e.key, code: e.code, held: held(e)}) });
for (const id of ['input', 'area'])
  document.getElementById(id).addEventListener('input', e => note('input', {on: id, value: e.target.value}));
document.getElementById('area').addEventListener('keydown', e => {
  if (e.key == 'Tab') { e.preventDefault(); document.execCommand('insertText', false, '\\t') }
});
const film = document.getElementById('moving').getContext('2d');
let step = 0;
setInterval(() => {
  step = (step + 7) % 200;
  film.fillStyle = 'white'; film.fillRect(0, 0, 200, 100); film.fillStyle = '#c33'; film.fillRect(step, 20, 30, 60);
}, location.search.includes('still') ? 1e9 : 200);
addEventListener('load', () => note('load', {width: innerWidth, height: innerHeight, x: screenX, y: screenY}));
addEventListener('resize', () => note('resize', {width: innerWidth, height: innerHeight}));
</script>"""

SERVER = r"""
import http.server, json, sys, threading
page, seen, turn = open("/tmp/page.html", "rb").read(), [], threading.Lock()
class Server(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *_): pass
    def answer(self, body, kind="application/json"):
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        if self.path != "/events": return self.answer(page, "text/html")
        with turn: self.answer(json.dumps(seen).encode())
    def do_POST(self):
        batch = json.loads(self.rfile.read(int(self.headers["content-length"])))
        with turn: seen.extend(batch)
        self.answer(b"{}")
    def do_DELETE(self):
        with turn: seen.clear()
        self.answer(b"{}")
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Server).serve_forever()
"""


def middle(name: str) -> list[int]:
    """The middle of something on the page, in pixels of the screen."""
    x, y, width, height = PLACES[name]
    return [x + width // 2, y + height // 2]


class Desktop:
    """A sandbox with a desktop, and the page on it."""

    def __init__(self, platform, **options: str) -> None:
        self.platform = platform
        arguments = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        self.id = self.command("create", "--template", "superserve/desktop", *arguments)

    def command(self, *arguments: str, stdin: str | None = None) -> str:
        done = self.platform.run("sandbox", "--state-dir", str(self.platform.state), *arguments, stdin=stdin)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def run(self, command: str) -> str:
        """A shell command on the desktop."""
        return self.command("exec", self.id, command)

    def open_page(self) -> None:
        page = PAGE.replace("PLACES", json.dumps(PLACES))
        self.command("cp", "-", f"{self.id}:/tmp/page.html", stdin=page)
        self.command("cp", "-", f"{self.id}:/tmp/server.py", stdin=SERVER)
        self.run(f"(nohup python3 /tmp/server.py {PORT} >/tmp/server.log 2>&1 &)")
        self.url = self.command("preview", self.id, str(PORT), "--access", "public")
        self.open_browser()

    def open_browser(self) -> None:
        self.forget()
        # Of its own, so that it does not remember another one's death.
        flags = f"--kiosk --user-data-dir=/tmp/profile-{time.monotonic_ns()} --disable-features=Translate"
        self.run(f"(nohup chromium {flags} http://127.0.0.1:{PORT}/ >/tmp/browser.log 2>&1 &)")
        try:
            self.until("the page fills the screen", lambda events: any(
                e["kind"] in ("load", "resize") and (e["width"], e["height"]) == (1280, 800) for e in events
            ), START_LIMIT_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.run('tail -c 2000 /tmp/browser.log; ps -ef | tail -40')}") from error

    def _ask(self, method: str) -> httpx.Response:
        address = httpx.URL(self.url + "/events")
        host = f"{address.host}:{address.port}"
        address = address.copy_with(host="127.0.0.1")
        return httpx.request(method, address, headers={"Host": host}, trust_env=False, timeout=30)

    def events(self) -> list[dict]:
        """What happened to the page, in order."""
        # While the server starts there is nothing to read.
        answer = self._ask("GET")
        return sorted(answer.json(), key=lambda e: e["n"]) if answer.status_code == 200 else []

    def forget(self) -> None:
        until = time.monotonic() + LIMIT_S
        while self._ask("DELETE").status_code != 200:
            assert time.monotonic() < until, "the page's server does not answer"
            time.sleep(0.1)

    def until(self, what: str, holds, limit: float = LIMIT_S) -> list[dict]:
        """Waits until it holds for the events, and returns them."""
        end = time.monotonic() + limit
        while not holds(events := self.events()):
            assert time.monotonic() < end, f"{what}: it did not happen; events: {json.dumps(events)[-3000:]}"
            time.sleep(0.02)
        return events

    def after(self, kind: str, count: int = 1, limit: float = LIMIT_S) -> list[dict]:
        """Waits for so many events of a kind, and returns all of that kind."""
        seen = lambda events: [e for e in events if e["kind"] == kind]  # noqa: E731
        return seen(self.until(f"{count} {kind}", lambda events: len(seen(events)) >= count, limit))

    def value(self, field: str, expected: str) -> None:
        """Waits until a field of the form has this value."""
        def last(events):
            return next((e["value"] for e in reversed(events) if e["kind"] == "input" and e["on"] == field), None)

        try:
            self.until(f"{field} is {expected!r}", lambda events: last(events) == expected)
        except AssertionError as error:
            raise AssertionError(f"{field} is {last(self.events())!r} instead of {expected!r}") from error
