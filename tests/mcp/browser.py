"""A real browser for tests: Debian's headless Chromium, driven over its DevTools protocol as a person would use it."""

import asyncio
import contextlib
import itertools
import json
import os
import pathlib
import shutil
import tempfile

import pytest
from websockets.asyncio.client import connect

# A start on a busy machine, and the longest wait for a page or a command.
START_LIMIT_S = 60
LIMIT_S = 30
STEP_S = 0.05
NAMES = ("chromium-headless-shell", "chromium", "google-chrome")


def program() -> str:
    found = os.environ.get("SUPERSERVE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if not found:
        pytest.skip("SKIPPED: no Chromium is installed; scripts/install-test-deps.sh installs Debian's")
    return found


class Page:
    """One tab."""

    def __init__(self, browser: "Browser", session: str) -> None:
        self.browser, self.session = browser, session

    async def send(self, method: str, **params):
        return await self.browser.send(method, params, self.session)

    async def goto(self, url: str) -> None:
        await self.send("Page.navigate", url=url)

    async def evaluate(self, expression: str):
        """The value of an expression in the page; from outside, so the page's policy does not forbid it."""
        answer = await self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    async def wait(self, expression: str):
        """Waits until an expression is true, across navigations."""
        until = asyncio.get_running_loop().time() + LIMIT_S
        while True:
            # While the page changes there is nothing to ask.
            with contextlib.suppress(RuntimeError, AssertionError):
                if value := await self.evaluate(expression):
                    return value
            if asyncio.get_running_loop().time() > until:
                shown = await self.evaluate("location.href + '\\n' + document.documentElement.outerHTML")
                raise AssertionError(f"{expression} did not become true at {shown[:3000]}")
            await asyncio.sleep(STEP_S)

    async def find(self, selector: str) -> None:
        """Waits until there is such an element."""
        await self.wait(f"!!document.querySelector({json.dumps(selector)})")

    async def click(self, selector: str) -> None:
        """A press of the mouse in the middle of an element."""
        middle = (
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView();"
            " const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] })()"
        )
        x, y = await self.evaluate(middle)
        for kind in ("mousePressed", "mouseReleased"):
            await self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def type(self, selector: str, text: str) -> None:
        await self.click(selector)
        await self.send("Input.insertText", text=text)

    async def close(self) -> None:
        await self.send("Page.close")


class Browser:
    """A browser with a profile of its own; use it with `async with`."""

    def __init__(self, *flags: str) -> None:
        self.flags = flags

    async def __aenter__(self) -> "Browser":
        self.profile = pathlib.Path(tempfile.mkdtemp(prefix="ss-browser-"))
        flags = ["--headless", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--no-proxy-server"]
        # Tests run as root, where its own sandbox cannot; the pages are ours.
        flags += ["--no-sandbox", "--disable-dev-shm-usage", f"--user-data-dir={self.profile}", "--remote-debugging-port=0"]
        self.process = await asyncio.create_subprocess_exec(
            program(), *flags, *self.flags, "about:blank", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        self.tasks: list[asyncio.Task] = []
        self.answers: dict[int, asyncio.Future] = {}
        self.events: list[dict] = []
        self.ids = itertools.count(1)
        try:
            address = await asyncio.wait_for(self._address(), START_LIMIT_S)
            self.socket = await connect(address, proxy=None, max_size=None)
        except BaseException:
            await self._end()
            raise
        self.tasks.append(asyncio.create_task(self._receive()))
        return self

    async def _address(self) -> str:
        seen = []
        while line := (await self.process.stderr.readline()).decode(errors="replace"):
            seen.append(line)
            if "DevTools listening on " in line:
                self.tasks.append(asyncio.create_task(self._drain()))
                return line.split("DevTools listening on ")[1].strip()
        raise AssertionError("the browser ended: " + "".join(seen)[-2000:])

    async def _drain(self) -> None:
        while await self.process.stderr.read(65536):
            pass

    async def _receive(self) -> None:
        async for text in self.socket:
            message = json.loads(text)
            if (waiting := self.answers.pop(message.get("id"), None)) and not waiting.done():
                waiting.set_result(message)
            elif "method" in message:
                self.events.append(message)

    async def send(self, method: str, params: dict | None = None, session: str | None = None) -> dict:
        number = next(self.ids)
        message = {"id": number, "method": method, "params": params or {}}
        if session:
            message["sessionId"] = session
        self.answers[number] = asyncio.get_running_loop().create_future()
        await self.socket.send(json.dumps(message))
        answer = await asyncio.wait_for(self.answers[number], LIMIT_S)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    async def page(self) -> Page:
        target = (await self.send("Target.createTarget", {"url": "about:blank"}))["targetId"]
        session = (await self.send("Target.attachToTarget", {"targetId": target, "flatten": True}))["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            await page.send(f"{domain}.enable")
        return page

    def complaints(self) -> list[str]:
        """What the browser wrote to its console, such as violations of a page's policy."""
        entries = [e["params"]["entry"]["text"] for e in self.events if e["method"] == "Log.entryAdded"]
        return entries + [str(e["params"]) for e in self.events if e["method"] == "Runtime.consoleAPICalled"]

    async def __aexit__(self, *_) -> None:
        with contextlib.suppress(Exception):
            await self.send("Browser.close")
        await self._end()

    async def _end(self) -> None:
        try:
            await asyncio.wait_for(self.process.wait(), LIMIT_S)
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        for task in self.tasks:
            task.cancel()
        with contextlib.suppress(AttributeError):
            await self.socket.close()
        # Its helpers may still write for a moment.
        for _ in range(100):
            shutil.rmtree(self.profile, ignore_errors=True)
            if not self.profile.exists():
                return
            await asyncio.sleep(STEP_S)
        raise AssertionError(f"{self.profile} cannot be removed")
