"""A desktop operated through `sandbox_computer`, the command line and the viewer. Whether an action arrived is read back from a page
in the sandbox's own browser; the Python SDK's part is in tests/sdk/test_python_desktop.py."""

import asyncio
import base64
import contextlib
import hashlib
import json
import os
import pathlib
import signal
import struct
import subprocess
import time

import httpx
import pytest
from browser import Browser
from conftest import clean_environment
from desktop import PLACES, middle
from test_mcp import client, fails, ok, server, text_of  # noqa: F401  a fixture
from test_preview_browser import keep_shot

PNG = b"\x89PNG\r\n\x1a\n"


async def act(client, desktop, action: str, **arguments):  # noqa: F811
    """An action that must succeed; its text and, if there is one, its picture."""
    result = await client.call_tool("sandbox_computer", {"sandbox_id": desktop.id, "action": action, **arguments})
    assert not result.is_error, f"{action}: {text_of(result)}"
    pictures = [block for block in result.content if block.type == "image"]
    return text_of(result), base64.b64decode(pictures[0].data) if pictures else None


async def quiet(client, desktop, action: str, **arguments) -> None:  # noqa: F811
    """An action without a look."""
    text, picture = await act(client, desktop, action, screenshot_after=False, **arguments)
    assert (text, picture) == (f"{action} done", None)


async def focus(client, desktop, field: str) -> None:  # noqa: F811
    """A click on a field that has arrived: a window manager may hand clicks on later than keys."""
    seen = len([e for e in desktop.events() if e["kind"] == "click" and e["on"] == field])
    await quiet(client, desktop, "left_click", coordinate=middle(field))
    desktop.until(f"a click on {field}", lambda events: len(
        [e for e in events if e["kind"] == "click" and e["on"] == field]
    ) > seen)


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(PNG)
    return struct.unpack(">II", png[16:24])


def kept(desktop) -> dict[str, int]:
    """What an agent must not gather: its descriptors, and the processes of the sandbox."""
    counted = desktop.run("ls /proc | grep -c '^[0-9]'")
    descriptors = desktop.run("sudo ls /proc/1/fd | wc -l")
    return {"processes": int(counted), "descriptors": int(descriptors)}


async def test_looking(client, desktop, tmp_path):  # noqa: F811
    result = await client.call_tool("sandbox_computer", {"sandbox_id": desktop.id, "action": "screenshot"})
    assert text_of(result) == "screenshot (1280x800)"
    assert result.structured_content is None, "some clients would show the model this instead of the picture"
    (picture,) = (block for block in result.content if block.type == "image")
    assert (picture.mime_type, size(base64.b64decode(picture.data))) == ("image/png", (1280, 800))
    keep_picture("desktop-page", base64.b64decode(picture.data))
    # The pointer is on the picture: it differs by where it is.
    await quiet(client, desktop, "mouse_move", coordinate=[1200, 700])
    one = (await act(client, desktop, "screenshot"))[1]
    await quiet(client, desktop, "mouse_move", coordinate=[1100, 600])
    assert (await act(client, desktop, "screenshot"))[1] != one


def keep_picture(name: str, picture: bytes) -> None:
    """For people: SUPERSERVE_TEST_SHOTS names a directory."""
    if directory := os.environ.get("SUPERSERVE_TEST_SHOTS"):
        suffix = "png" if picture.startswith(PNG) else "jpg"
        pathlib.Path(directory, f"{name}.{suffix}").write_bytes(picture)


async def test_every_button_arrives_where_it_was_meant(client, desktop):  # noqa: F811
    for action, kind, button, clicks in [
        ("left_click", "click", 0, 1),
        ("double_click", "dblclick", 0, 2),
        ("triple_click", "click", 0, 3),
        ("right_click", "contextmenu", 2, None),
        ("middle_click", "auxclick", 1, 1),
    ]:
        # Apart from each other in time, or the browser counts them as one series.
        await asyncio.sleep(0.6)
        desktop.forget()
        # A word: more than one click selects, and says so.
        x, y = PLACES["words"][0] + 60, PLACES["words"][1] + 10
        text, picture = await act(client, desktop, action, coordinate=[x, y])
        assert text == f"{action} done (1280x800)" and size(picture) == (1280, 800)
        events = desktop.after(kind, clicks if kind == "click" else 1)
        last = events[-1]
        assert (last["screenX"], last["screenY"], last["on"], last["button"]) == (x, y, "words", button), events
        if clicks and kind != "auxclick":
            assert last["detail"] == clicks, events
        pressed = [e for e in desktop.events() if e["kind"] == "mousedown"]
        assert len(pressed) == (clicks or 1) if action != "double_click" else len(pressed) == 2, pressed
        selected = {"double_click": "beta", "triple_click": "alpha beta gamma delta"}.get(action)
        if selected:
            assert last["selected"].strip() == selected, last
    # The corners of the screen.
    for x, y in [(0, 0), (1279, 0), (0, 799), (1279, 799)]:
        desktop.forget()
        await quiet(client, desktop, "left_click", coordinate=[x, y])
        (event,) = desktop.after("click")
        assert (event["screenX"], event["screenY"]) == (x, y)


async def test_drags_and_held_buttons_draw(client, desktop):  # noqa: F811
    x, y, *_ = PLACES["canvas"]
    desktop.forget()
    await act(client, desktop, "left_click_drag", start_coordinate=[x + 20, y + 30], coordinate=[x + 220, y + 130])
    up = desktop.after("mouseup")[-1]
    (down,) = (e for e in desktop.events() if e["kind"] == "mousedown")
    assert (down["x"], down["y"], up["x"], up["y"]) == (x + 20, y + 30, x + 220, y + 130)
    assert any(e["kind"] == "mousemove" and e["buttons"] == 1 for e in desktop.events())
    # The same in pieces.
    desktop.forget()
    await quiet(client, desktop, "left_mouse_down", coordinate=[x + 10, y + 200])
    for step in range(1, 6):
        await quiet(client, desktop, "mouse_move", coordinate=[x + 10 + 40 * step, y + 200 + 10 * step])
    assert not any(e["kind"] == "mouseup" for e in desktop.events())
    await quiet(client, desktop, "left_mouse_up", coordinate=[x + 250, y + 260])
    desktop.after("mouseup")
    moved = [(e["x"], e["y"]) for e in desktop.events() if e["kind"] == "mousemove" and e["buttons"] == 1]
    # The browser may make one of several.
    assert moved and set(moved) <= {(x + 10 + 40 * step, y + 200 + 10 * step) for step in range(6)} | {(x + 250, y + 260)}, moved


async def test_the_wheel_turns_in_all_directions(client, desktop):  # noqa: F811
    at = middle("scroll")
    for direction, axis, sign in [("down", "dy", 1), ("up", "dy", -1), ("right", "dx", 1), ("left", "dx", -1)]:
        desktop.forget()
        await act(client, desktop, "scroll", coordinate=at, scroll_direction=direction, scroll_amount=5)
        turned = desktop.after("wheel")
        # As many clicks as were asked for may come in fewer events.
        desktop.until(f"5 clicks {direction}", lambda events: wheel(events, axis) * sign >= 5 * 50)
        other = "dx" if axis == "dy" else "dy"
        assert all(e["on"] == "scroll" for e in turned) and wheel(desktop.events(), other) == 0
    desktop.forget()
    await quiet(client, desktop, "scroll", scroll_direction="down")
    desktop.until("3 clicks where the pointer is", lambda events: wheel(events, "dy") >= 3 * 50)
    place = desktop.after("scroll")[-1]
    assert place["top"] > 0, place


def wheel(events: list[dict], axis: str) -> float:
    return sum(e[axis] for e in events if e["kind"] == "wheel")


TEXTS = [
    "The quick brown fox, 0123456789.",
    "~`!@#$%^&*()-_=+[]{}\\|;:'\",.<>/?",
    "ÄÖÜ äöü ß éèêë ñ ç å ø æ œ € £ ¥ § ° µ ½ « » – — … ‘ ’ “ ”",
    "łódź žluťoučký кириллица ελληνικά עברית العربية",
    "日本語のテキスト 汉字漢字 한국어",
    "😀🎉🚀 👍 𝒳",
    "a\tb\nc\t\td\n\ne",
]


async def test_text_arrives_exactly(client, desktop):  # noqa: F811
    for text in TEXTS:
        await focus(client, desktop, "area")
        await quiet(client, desktop, "key", text="ctrl+a Delete")
        await act(client, desktop, "type", text=text)
        desktop.value("area", text)
    # One line of a form, and a capital lock that is on.
    await focus(client, desktop, "input")
    await quiet(client, desktop, "key", text="ctrl+a BackSpace")
    await quiet(client, desktop, "key", text="Caps_Lock")
    await quiet(client, desktop, "type", text="Straße 7b")
    await quiet(client, desktop, "key", text="CAPSLOCK")
    desktop.value("input", "Straße 7b")
    shot = (await act(client, desktop, "screenshot"))[1]
    keep_picture("desktop-text", shot)


async def test_chords_edit(client, desktop):  # noqa: F811
    await focus(client, desktop, "input")
    await quiet(client, desktop, "key", text="ctrl+a BackSpace")
    await quiet(client, desktop, "type", text="one two")
    await quiet(client, desktop, "key", text="CTRL+A")
    await quiet(client, desktop, "key", text="ctrl+c End space ctrl+v")
    desktop.value("input", "one two one two")
    await quiet(client, desktop, "key", text="shift+Home")
    await quiet(client, desktop, "type", text="x")
    desktop.value("input", "x")
    await quiet(client, desktop, "key", text="Control_L+z")
    desktop.value("input", "one two one two")


# As models of both families write them, and what the page must see.
KEYS = {
    "Return": "Enter", "ENTER": "Enter", "KP_Enter": "Enter", "Escape": "Escape", "ESC": "Escape", "Tab": "Tab", "TAB": "Tab",
    "space": " ", "SPACE": " ", "BackSpace": "Backspace", "BACKSPACE": "Backspace", "Delete": "Delete", "DEL": "Delete",
    "Insert": "Insert", "INSERT": "Insert", "Up": "ArrowUp", "ARROWUP": "ArrowUp", "Down": "ArrowDown", "ARROWDOWN": "ArrowDown",
    "Left": "ArrowLeft", "ARROWLEFT": "ArrowLeft", "Right": "ArrowRight", "ARROWRIGHT": "ArrowRight", "Home": "Home",
    "HOME": "Home", "End": "End", "END": "End", "Page_Up": "PageUp", "Prior": "PageUp", "PAGEUP": "PageUp",
    "Page_Down": "PageDown", "Next": "PageDown", "PAGEDOWN": "PageDown", "F2": "F2", "F9": "F9", "f4": "F4",
    "minus": "-", "slash": "/", "backslash": "\\", "comma": ",", "period": ".", "plus": "+", "+": "+", "-": "-", "/": "/",
    "\\": "\\", "a": "a", "A": "A", "7": "7", "?": "?",
    "shift": "Shift", "ctrl": "Control", "Control_L": "Control", "CTRL": "Control", "CONTROL": "Control", "alt": "Alt",
    "OPTION": "Alt", "super": "Meta", "Super_L": "Meta", "cmd": "Meta", "META": "Meta", "WIN": "Meta",
}  # fmt: skip
# Not on this keyboard: the browser has no name for such a key, and takes its text.
PRINTED = {"KP_0": "0", "ü": "ü", "adiaeresis": "ä", "EuroSign": "€", "日": "日", "U20AC": "€"}
CHORDS = {
    "ctrl+k": ("k", ["ctrl"]), "CTRL+K": ("k", ["ctrl"]), "ctrl+shift+k": ("K", ["ctrl", "shift"]), "alt+x": ("x", ["alt"]),
    "OPTION+X": ("x", ["alt"]), "shift+Tab": ("Tab", ["shift"]), "ctrl++": ("+", ["ctrl", "shift"]), "ctrl+-": ("-", ["ctrl"]),
    "shift+F3": ("F3", ["shift"]), " ctrl + Home ": ("Home", ["ctrl"]),
}  # fmt: skip


async def test_key_names_of_both_vocabularies(client, desktop):  # noqa: F811
    await focus(client, desktop, "keys")
    desktop.forget()
    for name in KEYS:
        await quiet(client, desktop, "key", text=name)
    modifiers = {"Shift", "Control", "Alt", "Meta"}
    wanted = list(KEYS.values())

    def pressed(events: list[dict]) -> list[str]:
        # Shift is pressed for what is above another character, and is not what was asked for then.
        keys = [e["key"] for e in events if e["kind"] == "keydown"]
        return [k for at, k in enumerate(keys) if k != "Shift" or at + 1 == len(keys) or keys[at + 1] in modifiers]

    with contextlib.suppress(AssertionError):
        desktop.until("all keys", lambda events: pressed(events) == wanted)
    seen = pressed(desktop.events())
    assert seen == wanted, {name: (expected, got) for (name, expected), got in zip(KEYS.items(), seen) if expected != got}
    for chord, (key, held) in CHORDS.items():
        desktop.forget()
        await quiet(client, desktop, "key", text=chord)
        events = desktop.until(chord, lambda events: any(e["kind"] == "keyup" and e["key"].lower() == key.lower() for e in events))
        downs = [(e["key"], e["held"]) for e in events if e["kind"] == "keydown" and e["key"] not in modifiers]
        assert downs == [(key, held)], f"{chord}: {downs}"
    await focus(client, desktop, "input")
    await quiet(client, desktop, "key", text="ctrl+a Delete " + " ".join(PRINTED))
    desktop.value("input", "".join(PRINTED.values()))
    # Nothing stays down.
    await focus(client, desktop, "keys")
    desktop.forget()
    await quiet(client, desktop, "key", text="a")
    (down,) = (e for e in desktop.after("keydown") if e["key"] == "a")
    assert down["held"] == []


async def test_mistakes_are_said_before_and_after(client, desktop):  # noqa: F811
    async def fail(*words: str, **arguments) -> str:
        return await fails(client, "sandbox_computer", *words, sandbox_id=desktop.id, **arguments)

    desktop.forget()
    await fail("left_click requires coordinate", action="left_click")
    await fail("[1280, 5] is outside the screen", "1280x800", "Nothing was sent", action="left_click", coordinate=[1280, 5])
    await fail("outside the screen", action="left_click_drag", start_coordinate=[5, 5], coordinate=[5, 800])
    said = await fail("Take a screenshot", "NoSuchKey", action="key", text="ctrl+NoSuchKey")
    assert "safe to retry" not in said
    await fail("320", "8192", action="resize", width=1281, height=800)
    await fail("write `ctrl+s`", action="key", text="ctrl-s")
    assert [e for e in desktop.events() if e["kind"] in ("mousedown", "keydown")] == []


async def test_resizing_is_live(client, desktop):  # noqa: F811
    desktop.forget()
    try:
        assert (await act(client, desktop, "resize", width=1024, height=768))[0] == "resized to 1024x768"
        text, picture = await act(client, desktop, "left_click", coordinate=[1023, 5])
        assert text == "left_click done (1024x768)" and size(picture) == (1024, 768)
        await fails(client, "sandbox_computer", "1024x768", sandbox_id=desktop.id, action="left_click", coordinate=[1024, 5])
        large, _ = await act(client, desktop, "resize", coordinate=[2560, 1600])
        assert large.startswith("resized to 2560x1600") and "1366x768" in large
        text, picture = await act(client, desktop, "left_click", coordinate=[2559, 1599])
        assert text.startswith("left_click done (2560x1600)")
        keep_picture("desktop-large", picture)
    finally:
        await act(client, desktop, "resize", width=1280, height=800)
    desktop.until("the page has its size again", lambda events: any(
        e["kind"] == "resize" and (e["width"], e["height"]) == (1280, 800) for e in events
    ))


async def test_a_noisy_screen_is_within_what_clients_take(client, desktop):  # noqa: F811
    show = (
        "<style>*{margin:0;overflow:hidden}</style><canvas width=1280 height=800></canvas><script>"
        "const c=document.querySelector('canvas').getContext('2d'),d=c.createImageData(1280,800);"
        "for(let i=0;i<d.data.length;i+=65536)crypto.getRandomValues(d.data.subarray(i,i+65536));"
        "for(let i=3;i<d.data.length;i+=4)d.data[i]=255;c.putImageData(d,0,0);</script>"
    )
    desktop.command("cp", "-", f"{desktop.id}:/tmp/noise.html", stdin=show)
    desktop.run("(nohup chromium --kiosk --user-data-dir=/tmp/profile-noise file:///tmp/noise.html >/dev/null 2>&1 &)")
    try:
        until = time.monotonic() + 30
        while True:
            text, picture = await act(client, desktop, "screenshot")
            if not picture.startswith(PNG):
                break
            assert time.monotonic() < until, "the noise does not show"
            await asyncio.sleep(0.2)
        assert text == "screenshot (1280x800)" and picture.startswith(b"\xff\xd8") and len(picture) < 750_000, len(picture)
        text, picture = await act(client, desktop, "left_click", coordinate=[5, 5])
        assert text == "left_click done (1280x800)" and picture.startswith(b"\xff\xd8")
    finally:
        # The brackets keep the shell that says this from being meant.
        desktop.run("pkill -f '[p]rofile-noise'; for i in $(seq 100); do pgrep -f '[p]rofile-noise' >/dev/null || exit 0; sleep 0.1; done")


async def test_waiting_asks_nothing_of_the_sandbox(client, desktop):  # noqa: F811
    begun = time.monotonic()
    assert (await act(client, desktop, "wait", duration_ms=300))[0] == "waited 300ms"
    assert time.monotonic() - begun >= 0.3


async def test_a_base_sandbox_is_told_apart(client, desktop):  # noqa: F811
    made = await ok(client, "sandbox_create", name="no-desktop")
    try:
        for more in ({"action": "screenshot"}, {"action": "left_click", "coordinate": [5, 5]}):
            await fails(client, "sandbox_computer", "superserve/desktop", "sandbox_create", sandbox_id=made["id"], **more)
    finally:
        await ok(client, "sandbox_kill", sandbox_id=made["id"])


async def test_a_paused_desktop_is_woken(client, desktop):  # noqa: F811
    await ok(client, "sandbox_pause", sandbox_id=desktop.id)
    desktop_text, picture = await act(client, desktop, "screenshot")
    assert desktop_text == "screenshot (1280x800)" and picture
    await ok(client, "sandbox_pause", sandbox_id=desktop.id)
    text, _ = await act(client, desktop, "left_click", coordinate=middle("button"))
    assert text == "left_click done (1280x800)"


# --- the command line


def frames(avi: bytes) -> tuple[int, list[bytes]]:
    """Frames per second, and what is in each chunk, by the index."""
    assert avi[:4] == b"RIFF" and avi[8:12] == b"AVI " and struct.unpack("<I", avi[4:8])[0] == len(avi) - 8
    movi = avi.index(b"movi")
    index = movi - 4 + 4 + struct.unpack("<I", avi[movi - 4 : movi])[0]
    assert avi[index : index + 4] == b"idx1"
    entries = struct.unpack("<I", avi[index + 4 : index + 8])[0] // 16
    assert struct.unpack("<I", avi[48:52])[0] == entries, "the head says how many frames there are"
    found = []
    for entry in range(entries):
        kind, _, offset, length = struct.unpack("<4sIII", avi[index + 8 + 16 * entry :][:16])
        chunk = avi[movi + offset :]
        assert kind == chunk[:4] == b"00dc"
        found.append(chunk[8 : 8 + length])
    return 1_000_000 // struct.unpack("<I", avi[32:36])[0], found


async def test_screenshots_on_the_command_line(platform, desktop, tmp_path):
    for name, arguments, begin in [
        ("a.png", [], PNG),
        ("b.jpg", [], b"\xff\xd8\xff"),
        ("c.bin", ["--format", "jpeg"], b"\xff\xd8\xff"),
    ]:
        path = tmp_path / name
        assert desktop.command("screenshot", desktop.id, "-o", str(path), *arguments) == str(path)
        assert path.read_bytes().startswith(begin)
    piped = subprocess.run(
        [str(platform.program), "sandbox", "--state-dir", str(platform.state), "screenshot", desktop.id, "-o", "-"],
        capture_output=True,
        timeout=60,
        env=clean_environment(),
    )
    assert piped.returncode == 0 and size(piped.stdout) == (1280, 800), piped.stderr
    told = json.loads(desktop.command("screenshot", desktop.id, "--json", "-o", str(tmp_path / "d.png")))
    assert (told["width"], told["height"], told["format"]) == (1280, 800, "png")


async def test_recordings_end_whole(platform, desktop, tmp_path):
    path = tmp_path / "by-time.avi"
    told = json.loads(desktop.command("record", desktop.id, "-o", str(path), "--seconds", "2", "--fps", "5", "--json"))
    fps, found = frames(path.read_bytes())
    assert (told["frames"], told["end"], fps, len(found)) == (10, "time", 5, 10)
    pictures = [frame for frame in found if frame]
    assert all(frame.startswith(b"\xff\xd8") for frame in pictures) and len(set(pictures)) > 2, "the page moves"
    # Ctrl-C.
    path = tmp_path / "by-hand.avi"
    command = [str(platform.program), "sandbox", "--state-dir", str(platform.state), "record", desktop.id]
    with subprocess.Popen([*command, "-o", str(path), "--json"], stdout=subprocess.PIPE, env=clean_environment()) as recorder:
        until = time.monotonic() + 30
        while not path.exists() or path.stat().st_size < 1000:
            assert time.monotonic() < until, "the recording does not begin"
            await asyncio.sleep(0.1)
        await asyncio.sleep(0.5)
        recorder.send_signal(signal.SIGINT)
        told = json.loads(recorder.communicate(timeout=30)[0])
        assert (recorder.returncode, told["end"]) == (0, "interrupted")
    assert len(frames(path.read_bytes())[1]) == told["frames"] > 0
    # A pause ends it, and it does not wake what was paused.
    path = tmp_path / "paused.avi"
    with subprocess.Popen([*command, "-o", str(path), "--json"], stdout=subprocess.PIPE, env=clean_environment()) as recorder:
        until = time.monotonic() + 30
        while not path.exists() or path.stat().st_size < 1000:
            assert time.monotonic() < until, "the recording does not begin"
            await asyncio.sleep(0.1)
        desktop.command("pause", desktop.id)
        told = json.loads(recorder.communicate(timeout=30)[0])
        assert (recorder.returncode, told["end"]) == (0, "not_running")
    assert json.loads(desktop.command("info", desktop.id, "--json"))["status"] == "paused"
    desktop.command("resume", desktop.id)
    assert len(frames(path.read_bytes())[1]) == told["frames"] > 0


# --- the viewer

SHOWN = "document.querySelector('#noVNC_container canvas, #noVNC_screen canvas, canvas')"
PICTURE = f"(() => {{ const c = {SHOWN}; return c && c.width > 300 ? c.toDataURL() : '' }})()"


async def moving(page) -> None:
    """Waits until the viewer shows the desktop, and then something else."""
    await page.wait(f"{SHOWN} && {SHOWN}.width === 1280 && {SHOWN}.height === 800")
    first = hashlib.sha256((await page.wait(PICTURE)).encode()).hexdigest()
    until = time.monotonic() + 20
    while hashlib.sha256((await page.evaluate(PICTURE)).encode()).hexdigest() == first:
        assert time.monotonic() < until, "the picture stands still"
        await asyncio.sleep(0.1)


async def click_in_viewer(page, x: int, y: int) -> None:
    """A click on what the viewer shows of a place on the screen."""
    place = f"(() => {{ const r = {SHOWN}.getBoundingClientRect(); return [r.x, r.y, r.width / 1280, r.height / 800] }})()"
    left, top, across, down = await page.evaluate(place)
    for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
        at = {"x": left + x * across, "y": top + y * down}
        await page.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)


async def test_the_viewer_shows_and_operates_the_desktop(client, desktop):  # noqa: F811
    url, _ = await act(client, desktop, "stream_url")
    assert f"//6080-{desktop.id}." in url and "/vnc.html?autoconnect=1&resize=scale" in url and "token" not in url
    async with Browser("--window-size=1400,900") as browser:
        page = await browser.page()
        await page.goto(url)
        await moving(page)
        await keep_shot(page, "desktop-viewer")
        desktop.forget()
        await click_in_viewer(page, *middle("button"))
        (event,) = desktop.after("click")
        assert event["on"] == "button"
        # View only: nothing that is done there arrives.
        watch, _ = await act(client, desktop, "stream_url", view_only=True)
        assert watch.endswith("&view_only=1")
        await page.goto(watch)
        await moving(page)
        desktop.forget()
        await click_in_viewer(page, *middle("button"))
        await asyncio.sleep(1)
        assert [e for e in desktop.events() if e["kind"] in ("mousedown", "click")] == []


async def test_a_private_viewer_needs_its_link(client, desktop):  # noqa: F811
    desktop.command("preview", desktop.id, "6080", "--access", "private")
    try:
        url, _ = await act(client, desktop, "stream_url", view_only=True)
        assert "&view_only=1&superserve_preview_token=" in url
        assert desktop.command("view", desktop.id).split("&superserve_preview_token=")[0] in url
        plain = url.split("&superserve_preview_token=")[0]
        address = httpx.URL(plain)
        local, host = address.copy_with(host="127.0.0.1"), {"Host": f"{address.host}:{address.port}"}
        async with httpx.AsyncClient(trust_env=False, timeout=30) as visitor:
            assert (await visitor.get(local, headers=host)).status_code == 401
            upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "x" * 22 + "=="}
            socket = local.copy_with(path="/websockify", query=None)
            assert (await visitor.get(socket, headers=host | upgrade)).status_code == 401
        async with Browser("--window-size=1400,900") as browser:
            page = await browser.page()
            await page.goto(plain)
            await page.wait("document.title === 'This preview is private'")
            await page.goto(url)
            await moving(page)
            assert "superserve_preview_token" not in await page.evaluate("location.href")
    finally:
        desktop.command("preview", desktop.id, "6080", "--access", "public")


async def test_nothing_listens_beyond_the_sandbox(desktop):
    sockets = desktop.run("ss -Hltn 2>/dev/null || sudo ss -Hltn").splitlines()
    listening = {line.split()[3] for line in sockets}
    assert any(address.endswith(":6080") for address in listening), listening
    open_to_others = {a for a in listening if not a.startswith(("127.", "[::1]")) and not a.endswith(":49983")}
    assert open_to_others == set(), "VNC and the viewer are on the loopback, and only previews lead there"


# --- endurance


async def test_five_hundred_actions_in_a_row(client, desktop):  # noqa: F811
    await focus(client, desktop, "input")
    await quiet(client, desktop, "key", text="ctrl+a BackSpace")
    before = kept(desktop)
    desktop.forget()
    x, y = middle("canvas")
    for number in range(500):
        # Nothing on the page takes the focus from the form.
        match number % 5:
            case 0:
                await quiet(client, desktop, "left_click", coordinate=[x + number % 100, y + number % 90])
            case 1:
                await quiet(client, desktop, "mouse_move", coordinate=[x - number % 100, y])
            case 2:
                await quiet(client, desktop, "scroll", coordinate=middle("scroll"), scroll_direction=("up", "down")[number % 2])
            case 3:
                await quiet(client, desktop, "key", text="End")
            case 4:
                await quiet(client, desktop, "type", text=str(number % 10))
    clicks = desktop.after("click", 100)
    assert len(clicks) == 100
    wrong = [e for e in clicks if e["on"] != "canvas"]
    assert not wrong, [e for e in desktop.events() if abs(e["n"] - wrong[0]["n"]) < 8]
    desktop.value("input", "".join(str(number % 10) for number in range(4, 500, 5)))
    for _ in range(5):
        text, picture = await act(client, desktop, "left_click", coordinate=[x, y])
        assert picture and text == "left_click done (1280x800)"
    after = kept(desktop)
    assert after["descriptors"] <= before["descriptors"] + 4 and after["processes"] <= before["processes"] + 4, (before, after)


async def test_a_killed_x_server_is_said_and_comes_back(client, desktop):  # noqa: F811
    before = kept(desktop)
    desktop.run("pkill -KILL -f '^[^ ]*Xtigervnc' || sudo pkill -KILL -f Xtigervnc")
    result = await client.call_tool("sandbox_computer", {"sandbox_id": desktop.id, "action": "left_click", "coordinate": [5, 5]})
    text = text_of(result)
    if result.is_error:
        assert "screenshot" in text and "safe to retry" not in text, text
        assert any(said in text for said in ("may have been delivered", "no screen", "stopped after 0 of 1")), text
    else:
        assert "screenshot failed" in text or "(1280x800)" in text, text
    until = time.monotonic() + 30
    while (await client.call_tool("sandbox_computer", {"sandbox_id": desktop.id, "action": "screenshot"})).is_error:
        assert time.monotonic() < until, "the screen does not come back"
        await asyncio.sleep(0.2)
    desktop.open_browser()
    desktop.forget()
    text, _ = await act(client, desktop, "left_click", coordinate=middle("button"))
    (event,) = desktop.after("click")
    assert text == "left_click done (1280x800)" and event["on"] == "button"
    after = kept(desktop)
    assert after["descriptors"] <= before["descriptors"] + 4 and after["processes"] <= before["processes"] + 10, (before, after)
