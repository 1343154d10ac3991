"""The desktop API of the official Python SDK, all of it, both ways; what it did is read back from the page on the desktop."""

import struct
import time

import httpx
import pytest
from desktop import PLACES, middle
from superserve import AsyncSandbox, Sandbox
from superserve.errors import SandboxError, ValidationError

TEXT = "Grüße, 日本語 😀\t~`{}|\nsecond"


@pytest.fixture(scope="module")
def sandbox(desktop, client_env):
    return Sandbox.connect(desktop.id)


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", png[16:24])


def test_looking(sandbox):
    shot = sandbox.desktop.screenshot()
    assert (shot.format, shot.width, shot.height, size(shot.data)) == ("png", 1280, 800, (1280, 800))
    shot = sandbox.desktop.screenshot(format="jpeg")
    assert (shot.format, shot.width, shot.data[:3]) == ("jpeg", 1280, b"\xff\xd8\xff")


def test_the_pointer(sandbox, desktop):
    at = middle("words")
    for act, kind, button in [
        (lambda: sandbox.desktop.click(*at), "click", 0),
        (lambda: sandbox.desktop.click(*at, button="middle"), "auxclick", 1),
        (lambda: sandbox.desktop.middle_click(*at), "auxclick", 1),
        (lambda: sandbox.desktop.right_click(*at), "contextmenu", 2),
        (lambda: sandbox.desktop.double_click(*at), "dblclick", 0),
    ]:
        time.sleep(0.6)
        desktop.forget()
        act()
        event = desktop.after(kind)[-1]
        assert [event["screenX"], event["screenY"], event["button"]] == [*at, button]
    x, y, *_ = PLACES["canvas"]
    desktop.forget()
    sandbox.desktop.move_mouse(x + 5, y + 6)
    moved = desktop.after("mousemove")[-1]
    assert (moved["x"], moved["y"], moved["buttons"]) == (x + 5, y + 6, 0)
    desktop.forget()
    sandbox.desktop.drag((x + 10, y + 10), (x + 90, y + 50))
    up = desktop.after("mouseup")[-1]
    assert (up["x"], up["y"]) == (x + 90, y + 50)
    assert any(e["kind"] == "mousemove" and e["buttons"] == 1 for e in desktop.events())
    sandbox.desktop.move_mouse(*middle("scroll"))
    desktop.forget()
    sandbox.desktop.scroll(dy=2, dx=-1)
    desktop.until("the wheel in both directions", lambda events: (
        sum(e["dy"] for e in events if e["kind"] == "wheel") > 0 and sum(e["dx"] for e in events if e["kind"] == "wheel") < 0
    ))


def test_the_keyboard(sandbox, desktop):
    sandbox.desktop.click(*middle("area"))
    sandbox.desktop.press("ctrl+a")
    sandbox.desktop.press(["delete"])
    sandbox.desktop.write(TEXT)
    desktop.value("area", TEXT)
    sandbox.desktop.write("")
    sandbox.desktop.press("enter")
    sandbox.desktop.write("x")
    desktop.value("area", TEXT + "\nx")


def test_batches(sandbox, desktop):
    sandbox.desktop.actions([])
    sandbox.desktop.actions(
        [
            {"type": "click", "x": middle("input")[0], "y": middle("input")[1]},
            {"type": "press", "key": "ctrl+a"},
            {"type": "write", "text": "from a batch"},
            {"type": "press", "key": "end"},
            {"type": "press", "key": "backspace"},
        ]
    )
    desktop.value("input", "from a batc")
    x, y, *_ = PLACES["canvas"]
    desktop.forget()
    sandbox.desktop.actions(
        [
            {"type": "mouse_down", "x": x + 20, "y": y + 200},
            {"type": "move", "x": x + 60, "y": y + 220},
            {"type": "mouse_up", "x": x + 90, "y": y + 240},
            {"type": "double_click", "x": x + 90, "y": y + 240},
            {"type": "scroll", "dy": 1},
        ]
    )
    desktop.after("dblclick")
    desktop.after("wheel")
    # A mistake anywhere, and nothing is done.
    desktop.forget()
    with pytest.raises((SandboxError, ValidationError), match="NoSuchKey"):
        sandbox.desktop.actions([{"type": "click", "x": x, "y": y}, {"type": "press", "key": "NoSuchKey"}])
    with pytest.raises((SandboxError, ValidationError)):
        sandbox.desktop.click(70_000, 5)
    assert [e for e in desktop.events() if e["kind"] == "mousedown"] == []


def test_steps(sandbox, desktop):
    at = middle("button")
    desktop.forget()
    step = sandbox.desktop.step([{"type": "click", "x": at[0], "y": at[1]}], settle_ms=300)
    assert (step.executed, step.action_error, size(step.screenshot.data)) == (1, None, (1280, 800))
    assert step.timings and step.timings.settle_ms >= 290
    assert desktop.after("click")[-1]["on"] == "button"
    keys = middle("input")
    step = sandbox.desktop.step(
        [{"type": "click", "x": keys[0], "y": keys[1]}, {"type": "press", "key": "ctrl+a"}, {"type": "write", "text": "stepped"}],
        wait_for_change=True,
        quiet_ms=50,
        format="jpeg",
    )
    assert (step.executed, step.changed, step.screenshot.format) == (3, True, "jpeg")
    desktop.value("input", "stepped")


def test_resizing(sandbox):
    try:
        sandbox.desktop.resize(1600, 900)
        shot = sandbox.desktop.screenshot()
        assert (shot.width, shot.height, size(shot.data)) == (1600, 900, (1600, 900))
        with pytest.raises((SandboxError, ValidationError), match="multiple of 8"):
            sandbox.desktop.resize(1001, 700)
    finally:
        sandbox.desktop.resize(1280, 800)


def test_the_viewer(sandbox, desktop):
    with httpx.Client(follow_redirects=True, timeout=30) as web:
        url = sandbox.desktop.get_stream_url()
        assert f"6080-{desktop.id}." in url and "superserve_preview_token" not in url
        page = web.get(url)
        assert page.status_code == 200 and "noVNC" in page.text
        watch = sandbox.desktop.get_stream_url(view_only=True)
        assert "view_only=1" in watch and web.get(watch).status_code == 200
    desktop.command("preview", desktop.id, "6080", "--access", "private")
    try:
        url = sandbox.desktop.get_stream_url()
        with httpx.Client(follow_redirects=True, timeout=30) as web:
            assert web.get(url.split("&superserve_preview_token=")[0]).status_code == 401
            page = web.get(url)
            assert page.status_code == 200 and "noVNC" in page.text and "superserve_preview_token" not in str(page.url)
    finally:
        desktop.command("preview", desktop.id, "6080", "--access", "public")


async def test_everything_without_blocking(desktop, client_env):
    sandbox = await AsyncSandbox.connect(desktop.id)
    screen = sandbox.desktop
    at = middle("words")
    desktop.forget()
    await screen.click(*at)
    await screen.move_mouse(*at)
    await screen.right_click(*at)
    await screen.middle_click(*at)
    await screen.double_click(*at)
    for kind in ("click", "contextmenu", "auxclick", "dblclick"):
        desktop.after(kind)
    x, y, *_ = PLACES["canvas"]
    await screen.drag((x + 10, y + 100), (x + 90, y + 150))
    await screen.move_mouse(*middle("scroll"))
    await screen.scroll(dy=1)
    desktop.after("wheel")
    await screen.click(*middle("area"))
    await screen.press("ctrl+a")
    await screen.write(TEXT)
    desktop.value("area", TEXT)
    await screen.actions([{"type": "press", "key": "ctrl+a"}, {"type": "write", "text": "batch"}])
    desktop.value("area", "batch")
    step = await screen.step([{"type": "write", "text": "!"}], wait_for_change=True)
    assert step.changed and step.screenshot.width == 1280
    desktop.value("area", "batch!")
    await screen.resize(1280, 720)
    assert (await screen.screenshot(format="jpeg")).height == 720
    await screen.resize(1280, 800)
    assert "/vnc.html?" in await screen.get_stream_url()


def test_a_paused_desktop_is_woken(sandbox, desktop):
    sandbox.pause()
    assert sandbox.desktop.screenshot().width == 1280
    sandbox.pause()
    sandbox.desktop.click(*middle("button"))
