//! The desktop: the template made of Debian packages, and every call of its service on a real one, with what it did read back
//! from programs inside.

use std::path::Path;
use std::time::{Duration, Instant};

use base64::Engine as _;
use rustix::process::Pid;
use serde_json::{Value, json};
use testing::{Answer, Platform, wait_for};

use crate::platform;

/// A machine that starts and draws a desktop, on a busy host.
const BUILD: Duration = Duration::from_secs(90);
/// Programs that open their windows.
const LIMIT: Duration = Duration::from_secs(40);
/// More than any keymap has unused keys, with all that has to come out exactly.
const TEXT: &str = "Hello, World! @#$%^&*()_+{}|:\"<>?~`-=[]\\;',./ 1234567890\nÄÖÜäöüß ÀÉÈÊÇñøå €£¥ «»„“–— tab:\tend\n\
                    漢字かな交じり文 한국어 中文字符测试 Привет ελληνικά עברית\n😀🎉👍🏽 e\u{301} o\u{308} \u{200d}\nÄ в Ä漢a的一是不了人我在有他这为之大来以个中上们\n";

struct Desk {
    p: Platform,
    id: String,
    token: String,
}

impl Desk {
    /// A sandbox with a desktop, where its layer was made before.
    async fn open() -> Option<Self> {
        let p = platform().await?;
        let made = std::env::var_os("SUPERSERVE_LAYERS_DIR").is_some_and(|layers| {
            let entries = std::fs::read_dir(Path::new(&layers)).into_iter().flatten().flatten();
            entries.into_iter().any(|entry| entry.file_name().to_string_lossy().starts_with("desktop-"))
        });
        if !made {
            eprintln!(
                "SKIPPED: SUPERSERVE_LAYERS_DIR has no layer of superserve/desktop; scripts/test.sh makes it"
            );
            return None;
        }
        let refused = p
            .rest("POST", "/sandboxes", Some(json!({"name": "d", "from_template": "superserve/desktop"})))
            .await;
        assert_eq!((refused.status, refused.code()), (409, "conflict"));
        assert!(
            refused.body.to_string().contains("superserve template build superserve/desktop"),
            "{:?}",
            refused.body
        );
        let template = "superserve%2Fdesktop";
        let build = p.rest("POST", &format!("/templates/{template}/builds"), Some(json!({}))).await;
        let build = build.body["id"].as_str().unwrap_or_else(|| panic!("{build:?}")).to_owned();
        let built = wait_for("the desktop template", BUILD, || async {
            let build = p.rest("GET", &format!("/templates/{template}/builds/{build}"), None).await.body;
            ["ready", "failed"].iter().any(|status| build["status"] == *status).then_some(build)
        })
        .await;
        assert_eq!(built["status"], "ready", "{built}");
        let (id, token) = p.create(json!({"from_template": "superserve/desktop"})).await;
        Some(Self { p, id, token })
    }

    async fn call(&self, method: &str, body: Value) -> Answer {
        let path = format!("/superserve.boxd.v1.DesktopService/{method}");
        self.p.data("POST", &path, &self.id, &self.token, body.to_string().into_bytes()).await
    }

    /// A call that must succeed.
    async fn ok(&self, method: &str, body: Value) -> Value {
        let shown = body.to_string().chars().take(200).collect::<String>();
        let answer = self.call(method, body).await;
        assert_eq!(answer.status, 200, "{method} {shown}: {:?}", answer.body);
        answer.body
    }

    /// A call that must be refused with a code.
    async fn refused(&self, method: &str, body: Value, status: u16, code: &str) -> String {
        let answer = self.call(method, body).await;
        assert_eq!(
            (answer.status, &answer.body["code"]),
            (status, &json!(code)),
            "{method}: {:?}",
            answer.body
        );
        answer.body["message"].as_str().unwrap().to_owned()
    }

    async fn run(&self, command: &str) -> String {
        self.p.run(&self.id, &self.token, command).await
    }

    async fn picture(&self) -> (Vec<u8>, u32, u32) {
        picture(&self.ok("Screenshot", json!({})).await)
    }

    /// Starts a program and waits for its window.
    async fn window(&self, command: &str, name: &str) {
        self.run(&format!("({command}) >/dev/null 2>&1 &")).await;
        wait_for(name, LIMIT, || async {
            let found = self.run(&format!("xdotool search --onlyvisible --name '{name}' || :")).await;
            (!found.trim().is_empty()).then_some(())
        })
        .await;
    }

    async fn mouse(&self) -> (i64, i64) {
        let at = self.run("xdotool getmouselocation --shell").await;
        let of = |name: &str| at.lines().find_map(|line| line.strip_prefix(name)?.parse().ok()).unwrap();
        (of("X="), of("Y="))
    }

    /// The agent, seen from the host.
    fn agent(&self) -> Pid {
        self.p.remains().init_of(&self.id).unwrap()
    }
}

/// Pixels as red, green, blue.
fn picture(answer: &Value) -> (Vec<u8>, u32, u32) {
    let bytes = base64::engine::general_purpose::STANDARD.decode(answer["image"].as_str().unwrap()).unwrap();
    let mut reader = png::Decoder::new(std::io::Cursor::new(bytes)).read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let info = reader.next_frame(&mut pixels).unwrap();
    assert_eq!(
        (answer["width"].as_u64(), answer["height"].as_u64()),
        (Some(info.width.into()), Some(info.height.into()))
    );
    (pixels, info.width, info.height)
}

fn click(x: u32, y: u32) -> Value {
    json!({"x": x, "y": y, "action": "POINTER_ACTION_CLICK"})
}

fn descriptors(pid: Pid) -> usize {
    std::fs::read_dir(format!("/proc/{}/fd", pid.as_raw_nonzero())).unwrap().count()
}

fn status(pid: Pid, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix(field)).unwrap();
    line.trim_start_matches(':').split_whitespace().next().unwrap().parse().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_does_what_it_says() {
    let Some(desk) = Desk::open().await else { return };
    // Everything but the first process runs as the desktop's user, and nothing listens but noVNC, on the loopback.
    assert_eq!(desk.run("id -un; echo $DISPLAY").await, "desktop\n:1\n");
    let roots = desk.run("ps -eo user=,args= | grep ^root | grep -v superserve/agent || :").await;
    assert_eq!(roots, "");
    assert_eq!(
        desk.run("cut -c7-37,84-87 /proc/net/tcp | grep ' 0A' | sort -u").await.trim(),
        "0100007F:17C0 00000000:0000 0A"
    );
    assert!(desk.run("curl -fsS http://127.0.0.1:6080/vnc.html").await.contains("noVNC"));

    // Pictures: both formats, and the pointer is on them.
    desk.ok("SendPointer", json!({"x": 300, "y": 300, "action": "POINTER_ACTION_MOVE"})).await;
    let (one, width, height) = desk.picture().await;
    assert_eq!((width, height), (1280, 800));
    desk.ok("SendPointer", json!({"x": 600, "y": 300, "action": "POINTER_ACTION_MOVE"})).await;
    let (two, ..) = desk.picture().await;
    let differ: Vec<usize> =
        (0..one.len() / 3).filter(|at| one[at * 3..at * 3 + 3] != two[at * 3..at * 3 + 3]).collect();
    let near = |at: &usize, x: usize| (at % 1280).abs_diff(x) < 40 && (at / 1280).abs_diff(300) < 40;
    assert!(
        !differ.is_empty() && differ.iter().all(|at| near(at, 300) || near(at, 600)),
        "{} pixels",
        differ.len()
    );
    let jpeg = desk.ok("Screenshot", json!({"format": "FRAME_FORMAT_JPEG"})).await;
    assert_eq!(jpeg["format"], "FRAME_FORMAT_JPEG");
    assert!(jpeg["image"].as_str().unwrap().starts_with("/9j/"));
    assert!(desk.ok("Screenshot", json!({"later": 1})).await.get("format").is_none());

    // The pointer, its edges, its buttons.
    assert_eq!(desk.mouse().await, (600, 300));
    desk.ok("SendPointer", json!({"x": 65535, "y": 40000, "action": "POINTER_ACTION_MOVE"})).await;
    assert_eq!(desk.mouse().await, (1279, 799));
    desk.run(
        "(xev -geometry 600x400+100+100 -event mouse -event keyboard >/tmp/events 2>&1) >/dev/null 2>&1 &",
    )
    .await;
    wait_for("xev", LIMIT, || async {
        let found = desk.run("xdotool search --onlyvisible --name 'Event Tester' || :").await;
        (!found.trim().is_empty()).then_some(())
    })
    .await;
    desk.ok("SendPointer", click(300, 300)).await;
    wait_for("the first click", LIMIT, || async {
        desk.run("cat /tmp/events").await.contains("ButtonRelease").then_some(())
    })
    .await;
    desk.run(": >/tmp/events").await;
    desk.ok(
        "SendPointer",
        json!({"x": 310, "y": 320, "button": "POINTER_BUTTON_RIGHT", "action": "POINTER_ACTION_CLICK"}),
    )
    .await;
    desk.ok("SendPointer", json!({"x": 310, "y": 320, "button": "POINTER_BUTTON_MIDDLE", "action": "POINTER_ACTION_DOUBLE_CLICK"})).await;
    desk.ok("Scroll", json!({"dx": -1, "dy": 2})).await;
    desk.ok("SendKey", json!({"key": "c", "modifiers": ["ctrl", "shift"]})).await;
    desk.ok("SendKey", json!({"key": "Page_Down"})).await;
    let drag = |x: u32, action: &str| json!({"pointer": {"x": x, "y": 330, "action": format!("POINTER_ACTION_{action}")}});
    let done = desk
        .ok("SendActions", json!({"actions": [drag(320, "DOWN"), drag(350, "MOVE"), drag(400, "UP")]}))
        .await;
    assert_eq!(done, json!({"executed": 3}));
    let events = wait_for("the events", LIMIT, || async {
        let events = desk.run("cat /tmp/events").await;
        events.matches("ButtonRelease").count().ge(&7).then_some(events)
    })
    .await;
    let buttons: Vec<&str> = events
        .lines()
        .filter_map(|line| line.split_once(", button ").map(|(_, rest)| rest.split(',').next().unwrap()))
        .collect();
    let twice = ["3", "2", "2", "5", "5", "6", "1"].map(|button| [button; 2]).concat();
    assert_eq!(buttons, twice, "{events}");
    let keys: Vec<&str> = events
        .lines()
        .filter_map(|line| {
            line.split_once("keysym ")?.1.split_once(", ")?.1.split_once(')').map(|(name, _)| name)
        })
        .collect();
    let chord = ["Control_L", "Shift_L", "C", "C", "Shift_L", "Control_L", "Next", "Next"];
    assert_eq!(keys, chord, "{events}");
    desk.run("pkill xev").await;

    // Batches are refused as a whole, and nothing of them is delivered.
    desk.ok("SendPointer", json!({"x": 5, "y": 6, "action": "POINTER_ACTION_MOVE"})).await;
    let bad =
        json!([{"pointer": {"x": 9, "y": 9, "action": "POINTER_ACTION_MOVE"}}, {"key": {"key": "Nope"}}]);
    let message = desk.refused("SendActions", json!({"actions": bad}), 400, "invalid_argument").await;
    assert!(message.contains("action 1 of 2") && message.contains("Nope"), "{message}");
    desk.refused("Step", json!({"actions": bad, "settleMs": 5}), 400, "invalid_argument").await;
    assert_eq!(desk.mouse().await, (5, 6));
    desk.refused("Step", json!({"actions": []}), 400, "invalid_argument").await;
    desk.refused(
        "Step",
        json!({"actions": [{"scroll": {"dy": 1}}], "settleMs": 2001}),
        400,
        "invalid_argument",
    )
    .await;
    desk.refused(
        "SendPointer",
        json!({"x": 70000, "action": "POINTER_ACTION_CLICK"}),
        400,
        "invalid_argument",
    )
    .await;
    desk.refused("SendKey", json!({}), 400, "invalid_argument").await;
    desk.refused("Scroll", json!({"dy": 501}), 400, "invalid_argument").await;
    desk.refused("Screenshot", json!([1]), 400, "invalid_argument").await;
    desk.refused("Resize", json!({"width": 1281, "height": 800}), 400, "invalid_argument").await;
    let denied = desk
        .p
        .data("POST", "/superserve.boxd.v1.DesktopService/Screenshot", &desk.id, "wrong", b"{}".to_vec())
        .await;
    assert_eq!(denied.status, 401);
    let unknown = desk.call("Explode", json!({})).await;
    assert_eq!(unknown.status, 404);

    // A step waits for what its actions do; opening the menu of the desktop changes the screen, moving the pointer does not.
    let menu = json!({"pointer": {"x": 700, "y": 500, "button": "POINTER_BUTTON_RIGHT", "action": "POINTER_ACTION_CLICK"}});
    let step = desk
        .ok("Step", json!({"actions": [menu], "waitForChange": true, "settleMs": 2000, "quietMs": 60}))
        .await;
    assert_eq!((&step["executed"], &step["changed"]), (&json!(1), &json!(true)), "{}", step["actionError"]);
    assert_eq!(picture(&step["screenshot"]).1, 1280);
    assert!(step.get("actionError").is_none() && step.get("captureError").is_none());
    let step = desk
        .ok(
            "Step",
            json!({"actions": [{"key": {"key": "Escape"}}], "settleMs": 300, "format": "FRAME_FORMAT_JPEG"}),
        )
        .await;
    assert_eq!(step["screenshot"]["format"], "FRAME_FORMAT_JPEG");
    assert!(step["settleMs"].as_i64().unwrap() >= 300, "{}", step["settleMs"]);
    let still = json!({"actions": [{"pointer": {"x": 500, "y": 200, "action": "POINTER_ACTION_MOVE"}}], "waitForChange": true, "settleMs": 200});
    let step = desk.ok("Step", still).await;
    assert_eq!((&step["executed"], step.get("changed")), (&json!(1), None));

    // Live sizes, also ones no list of modes has.
    for (width, height) in [(1024, 768), (648, 203), (2560, 1440), (1280, 800)] {
        desk.ok("Resize", json!({"width": width, "height": height})).await;
        let (_, seen_width, seen_height) = desk.picture().await;
        assert_eq!((seen_width, seen_height), (width, height));
    }
    assert_eq!(desk.run("xrandr | grep -c superserve- || :").await.trim(), "0");

    // Four pictures at a time. The screen is large enough that they overlap.
    desk.ok("Resize", json!({"width": 4096, "height": 2160})).await;
    let shots = (0..12).map(|_| desk.call("Screenshot", json!({})));
    let answers = futures_util::future::join_all(shots).await;
    let count = |status: u16| answers.iter().filter(|answer| answer.status == status).count();
    assert!(
        count(200) >= 4 && count(429) >= 1 && count(200) + count(429) == 12,
        "{} of 12 taken",
        count(200)
    );
    let busy = answers.iter().find(|answer| answer.status == 429).unwrap();
    assert_eq!(busy.body["code"], "resource_exhausted");
    desk.ok("Resize", json!({"width": 1280, "height": 800})).await;
    desk.picture().await;

    stream(&desk).await;

    // A sandbox without a display says so.
    let (id, token) = desk.p.create(json!({})).await;
    let path = "/superserve.boxd.v1.DesktopService/Screenshot";
    let none = desk.p.data("POST", path, &id, &token, b"{}".to_vec()).await;
    assert_eq!((none.status, &none.body["code"]), (400, &json!("failed_precondition")));
}

/// A frame at once, another when the screen changes, and one stream at a time.
async fn stream(desk: &Desk) {
    let open = || {
        let url = format!("http://{}/superserve.boxd.v1.DesktopService/Stream", desk.p.edge());
        reqwest::Client::builder()
            .no_proxy()
            .build()
            .unwrap()
            .post(url)
            .header("x-superserve-sandbox-id", &desk.id)
            .header("x-access-token", &desk.token)
    };
    let body = [&[0_u8, 0, 0, 0, 10][..], br#"{"fps":10}"#].concat();
    let request = open().header("content-type", "application/connect+json").body(body);
    let mut stream = request.send().await.unwrap();
    assert_eq!(
        (stream.status().as_u16(), stream.headers()["content-type"].to_str().unwrap()),
        (200, "application/connect+json")
    );
    let mut bytes = Vec::new();
    let mut frames = 0;
    let until = Instant::now() + LIMIT;
    let mut second = None;
    while frames < 2 {
        let next = tokio::time::timeout_at(until.into(), stream.chunk()).await.expect("frames come");
        bytes.extend(next.unwrap().expect("the stream goes on"));
        while let Some(length) =
            bytes.get(1..5).map(|length| u32::from_be_bytes(length.try_into().unwrap()) as usize)
        {
            if bytes.len() < 5 + length {
                break;
            }
            let message: Value = serde_json::from_slice(&bytes[5..5 + length]).unwrap();
            bytes.drain(..5 + length);
            if message.get("end").is_some() {
                frames += 1;
                if second.is_none() {
                    let again = desk.call("Stream", json!({})).await;
                    assert_eq!((again.status, &again.body["code"]), (429, &json!("resource_exhausted")));
                    second = Some(());
                    desk.ok("SendPointer", json!({"x": 900, "y": 90, "action": "POINTER_ACTION_MOVE"})).await;
                }
            }
        }
    }
    drop(stream);
    wait_for("the place of the stream", LIMIT, || async {
        // It is dropped at once.
        let again =
            open().header("content-type", "application/json").body(r#"{"fps":1}"#).send().await.unwrap();
        assert!([200, 429].contains(&again.status().as_u16()), "{}", again.status());
        (again.status() == 200).then_some(())
    })
    .await;
    let wrong = open().header("content-type", "application/json").body(r#"{"fps":99}"#).send().await.unwrap();
    assert_eq!(wrong.status(), 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn text_arrives_exactly() {
    let Some(desk) = Desk::open().await else { return };
    // On a layout without Latin letters, with Caps Lock on: neither changes what is typed.
    let layouts = [("setxkbmap us", false), ("setxkbmap ru", false), ("setxkbmap de", true)];
    for (layout, caps) in layouts {
        desk.run(&format!("rm -f /tmp/typed; {layout}")).await;
        desk.window("xterm -T typed -e 'stty -echo; cat >/tmp/typed'", "typed").await;
        desk.run(
            "xdotool search --name typed windowfocus --sync; until [ -e /tmp/typed ]; do sleep 0.1; done",
        )
        .await;
        if caps {
            desk.ok("SendKey", json!({"key": "Caps_Lock"})).await;
        }
        desk.ok("SendKey", json!({"text": TEXT})).await;
        desk.ok("SendKey", json!({"key": "d", "modifiers": ["ctrl"]})).await;
        let typed = wait_for("what xterm got", LIMIT, || async {
            let open = desk.run("pgrep -c xterm || :").await;
            if open.trim() != "0" {
                return None;
            }
            Some(desk.run("cat /tmp/typed").await)
        })
        .await;
        assert_eq!(typed, TEXT, "{layout}");
        if caps {
            assert!(desk.run("xset q").await.contains("Caps Lock:   on"));
            desk.ok("SendKey", json!({"key": "Caps_Lock"})).await;
        }
    }
    // In a GTK program, which reads the keymap in its own way.
    desk.run("setxkbmap us; : >/tmp/edited.txt").await;
    desk.window("mousepad /tmp/edited.txt", "edited.txt").await;
    desk.run("xdotool search --onlyvisible --name edited.txt windowfocus --sync; sleep 0.5").await;
    desk.ok("SendKey", json!({"text": TEXT})).await;
    desk.ok("SendKey", json!({"key": "s", "modifiers": ["ctrl"]})).await;
    let edited = wait_for("what the editor has saved", LIMIT, || async {
        let edited = desk.run("cat /tmp/edited.txt").await;
        (!edited.is_empty()).then_some(edited)
    })
    .await;
    assert_eq!(edited, TEXT);
    // Nothing is left of it in the keymap, and no key is down.
    let borrowed = || async {
        let codes = desk.run("xmodmap -pke | grep -cE 'U[0-9A-F]{4}|adiaeresis' || :").await;
        (codes.trim() == "0").then_some(())
    };
    wait_for("the keymap as it was", LIMIT, borrowed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_desktop_survives() {
    let Some(desk) = Desk::open().await else { return };
    let agent = desk.agent();
    desk.picture().await;
    desk.ok("SendKey", json!({"text": "warm up ä"})).await;
    // The edge keeps as many connections as there were calls at a time.
    let _both = tokio::join!(desk.run("sleep 0.5"), desk.run("sleep 0.5"));
    let (fds, threads) = (descriptors(agent), status(agent, "Threads"));

    // 500 actions in a row.
    for round in 0..100_u32 {
        let x = 20 + round * 10;
        let actions = json!([
            {"pointer": {"x": x, "y": 400, "action": "POINTER_ACTION_MOVE"}},
            {"pointer": {"x": x, "y": 410, "action": "POINTER_ACTION_DOWN"}},
            {"pointer": {"x": x, "y": 420, "action": "POINTER_ACTION_UP"}},
            {"scroll": {"dy": 1}},
            {"key": {"key": "Escape"}},
        ]);
        assert_eq!(desk.ok("SendActions", json!({"actions": actions})).await["executed"], 5);
    }
    desk.picture().await;
    assert_eq!((descriptors(agent), status(agent, "Threads")), (fds, threads));

    // The X server dies under a batch that has pressed things: a clear word, and the next call finds the new one.
    let long = json!([
        {"pointer": {"x": 400, "y": 400, "action": "POINTER_ACTION_DOWN"}},
        {"key": {"text": TEXT.repeat(100)}}, {"key": {"text": TEXT.repeat(100)}}, {"key": {"text": TEXT.repeat(100)}},
        {"pointer": {"x": 400, "y": 400, "action": "POINTER_ACTION_UP"}},
    ]);
    let batch = desk.call("SendActions", json!({"actions": &long}));
    let kill = async {
        wait_for("the batch to begin", LIMIT, || async { (desk.mouse().await == (400, 400)).then_some(()) })
            .await;
        desk.run("pkill -9 Xtigervnc").await;
    };
    let (cut, ()) = tokio::join!(batch, kill);
    let message = cut.body["message"].as_str().unwrap_or_default().to_owned();
    // It had begun, so it is no refusal.
    assert_eq!((cut.status, &cut.body["code"]), (500, &json!("internal")), "{cut:?}");
    assert!(message.contains("of 5 failed") && message.contains("X server"), "{message}");
    wait_for("the desktop to come back", LIMIT, || async {
        let answer = desk.call("Screenshot", json!({})).await;
        assert!([200, 400, 500].contains(&answer.status), "{answer:?}");
        (answer.status == 200).then_some(())
    })
    .await;
    desk.ok("SendPointer", json!({"x": 33, "y": 44, "action": "POINTER_ACTION_MOVE"})).await;
    assert_eq!(desk.mouse().await, (33, 44));
    desk.picture().await;
    assert_eq!((descriptors(agent), status(agent, "Threads")), (fds, threads));

    // The pointer's shape is of a program that has ended: nobody may read it, and the picture is there all the same.
    desk.run("python3 -c 'import ctypes as c; x=c.CDLL(\"libX11.so.6\"); x.XOpenDisplay.restype=c.c_void_p; d=c.c_void_p(x.XOpenDisplay(None)); x.XDefaultRootWindow.restype=c.c_ulong; x.XCreateFontCursor.restype=c.c_ulong; x.XDefineCursor(d,c.c_ulong(x.XDefaultRootWindow(d)),c.c_ulong(x.XCreateFontCursor(d,34))); x.XSync(d,0)'").await;
    desk.ok("SendPointer", json!({"x": 400, "y": 300, "action": "POINTER_ACTION_MOVE"})).await;
    desk.ok("Screenshot", json!({})).await;

    // A caller who goes away in the middle leaves nothing pressed, and the next one does not wait for the rest.
    let gone = desk.call("SendActions", json!({"actions": &long}));
    assert!(tokio::time::timeout(Duration::from_millis(700), gone).await.is_err(), "it takes longer");
    desk.ok("SendPointer", json!({"x": 70, "y": 80, "action": "POINTER_ACTION_MOVE"})).await;
    // xinput is not there; the state of a motion says which buttons and modifiers are down.
    let down = desk.run("python3 -c 'import ctypes as c; x=c.CDLL(\"libX11.so.6\"); x.XOpenDisplay.restype=c.c_void_p; d=c.c_void_p(x.XOpenDisplay(None)); v=[c.c_ulong() for _ in range(2)]; n=[c.c_int() for _ in range(4)]; m=c.c_uint(); x.XDefaultRootWindow.restype=c.c_ulong; r=c.c_ulong(x.XDefaultRootWindow(d)); x.XQueryPointer(d,r,*map(c.byref,v),*map(c.byref,n),c.byref(m)); k=c.create_string_buffer(32); x.XQueryKeymap(d,k); print(m.value, any(k.raw))'").await;
    assert_eq!(down.trim(), "0 False");

    // A sandbox that was paused and one whose machine was stopped hard go on; the desktop is started again.
    let paused = desk.p.rest("POST", &format!("/sandboxes/{}/pause", desk.id), None).await;
    assert!(paused.status < 300, "{paused:?}");
    let refused = desk.call("Screenshot", json!({})).await;
    assert_eq!(refused.status, 503);
}
