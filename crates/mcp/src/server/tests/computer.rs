//! `sandbox_computer`: what goes to the desktop, and what a model reads when things go wrong (`spec/mcp.md` §C.15, §I.13).
//! That the input arrives is shown on a real desktop.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use axum::http::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::session::{ID, Platform, Seen, Session, cancel, json_answer};
use crate::tools::png;

const TOOL: &str = "sandbox_computer";
const SERVICE: &str = "/superserve.boxd.v1.DesktopService/";

/// Methods in order, with what was sent.
fn sent(platform: &Platform) -> Vec<(String, Value)> {
    let seen = platform.seen().into_iter();
    seen.map(|seen| {
        let method = seen.path.strip_prefix(SERVICE).unwrap_or(&seen.path).to_owned();
        (method, serde_json::from_slice(&seen.body).unwrap_or(Value::Null))
    })
    .collect()
}

fn shot(width: u32, height: u32, bytes: usize) -> Value {
    json!({"image": STANDARD.encode(png(width, height, bytes)), "width": width, "height": height})
}

fn connect(status: u16, code: &str, message: &str) -> Response<Body> {
    json_answer(status, &json!({"code": code, "message": message}))
}

/// A desktop that answers `Step` and the rest as a new one would.
fn good(seen: &Seen) -> Response<Body> {
    let body: Value = serde_json::from_slice(&seen.body).unwrap_or_default();
    match seen.path.strip_prefix(SERVICE) {
        Some("Screenshot") => json_answer(200, &shot(1280, 800, 0)),
        Some("Step") => {
            let executed = body["actions"].as_array().unwrap().len();
            json_answer(
                200,
                &json!({"executed": executed, "changed": true, "screenshot": shot(1280, 800, 0)}),
            )
        }
        Some("SendActions" | "Resize") => json_answer(200, &json!({})),
        _ => json_answer(404, &json!({"error": {"code": "not_found", "message": "no such thing"}})),
    }
}

async fn desktop() -> Platform {
    Platform::start(|seen| async move { good(&seen) }).await
}

/// One method answers in its own way.
async fn but(method: &'static str, answer: fn(&Seen) -> Response<Body>) -> Platform {
    Platform::start(move |seen| async move {
        if seen.path == format!("{SERVICE}{method}") { answer(&seen) } else { good(&seen) }
    })
    .await
}

async fn act(session: &mut Session, arguments: Value) -> Value {
    session.call(TOOL, with_id(arguments)).await
}

fn with_id(mut arguments: Value) -> Value {
    arguments["sandbox_id"] = ID.into();
    arguments
}

fn text(result: &Value) -> &str {
    result["content"][0]["text"].as_str().unwrap()
}

fn has_image(result: &Value) -> bool {
    result["content"].as_array().unwrap().iter().any(|block| block["type"] == "image")
}

#[tokio::test]
async fn a_screenshot_is_text_and_image_and_nothing_that_hides_it() {
    let platform = desktop().await;
    let mut session = platform.session();
    let result = act(&mut session, json!({"action": "screenshot"})).await;
    assert_eq!(
        result,
        json!({
            "content": [
                {"type": "text", "text": "screenshot (1280x800)"},
                {"type": "image", "mimeType": "image/png", "data": STANDARD.encode(png(1280, 800, 0))},
            ],
            "_meta": {"superserve/width": 1280, "superserve/height": 800},
        })
    );
    assert_eq!(sent(&platform), [("Screenshot".to_owned(), json!({}))]);
}

#[tokio::test]
async fn the_structured_form_beside_an_image_can_be_had() {
    let platform = desktop().await;
    let mut session = Session::start_with(&platform.url, true);
    let result = act(&mut session, json!({"action": "screenshot"})).await;
    assert_eq!(result["structuredContent"], json!({"width": 1280, "height": 800}));
    assert!(has_image(&result));
}

#[tokio::test]
async fn each_action_is_one_step_with_the_right_batch() {
    let pointer = |x: i64, y: i64, action: &str| json!({"pointer": {"x": x, "y": y, "action": format!("POINTER_ACTION_{action}")}});
    let button = |name: &str| json!({"pointer": {"x": 5, "y": 7, "action": "POINTER_ACTION_CLICK", "button": format!("POINTER_BUTTON_{name}")}});
    let click = pointer(5, 7, "CLICK");
    for (action, arguments, batch) in [
        ("left_click", json!({"coordinate": [5, 7]}), json!([click])),
        ("right_click", json!({"coordinate": [5, 7]}), json!([button("RIGHT")])),
        ("middle_click", json!({"coordinate": ["5", 7.0]}), json!([button("MIDDLE")])),
        ("double_click", json!({"coordinate": [5, 7]}), json!([pointer(5, 7, "DOUBLE_CLICK")])),
        ("triple_click", json!({"coordinate": [5, 7]}), json!([click, click, click])),
        (
            "left_click_drag",
            json!({"start_coordinate": [1, 2], "coordinate": [5, 7]}),
            json!([pointer(1, 2, "DOWN"), pointer(5, 7, "MOVE"), pointer(5, 7, "UP")]),
        ),
        ("left_mouse_down", json!({"coordinate": [5, 7]}), json!([pointer(5, 7, "DOWN")])),
        ("left_mouse_up", json!({"coordinate": [5, 7]}), json!([pointer(5, 7, "UP")])),
        ("mouse_move", json!({"coordinate": [5, 7]}), json!([pointer(5, 7, "MOVE")])),
        ("key", json!({"text": "CTRL+A"}), json!([{"key": {"key": "a", "modifiers": ["ctrl"]}}])),
        (
            "key",
            json!({"text": "ctrl+a Delete"}),
            json!([{"key": {"key": "a", "modifiers": ["ctrl"]}}, {"key": {"key": "Delete"}}]),
        ),
        ("type", json!({"text": " ü\n"}), json!([{"key": {"text": " ü\n"}}])),
        ("scroll", json!({"scroll_direction": "up", "scroll_amount": 5}), json!([{"scroll": {"dy": -5}}])),
        ("scroll", json!({"scroll_direction": "down"}), json!([{"scroll": {"dy": 3}}])),
        (
            "scroll",
            json!({"scroll_direction": "left", "scroll_amount": 1000}),
            json!([{"scroll": {"dx": -100}}]),
        ),
        (
            "scroll",
            json!({"scroll_direction": "right", "coordinate": [5, 7]}),
            json!([pointer(5, 7, "MOVE"), {"scroll": {"dx": 3}}]),
        ),
    ] {
        let platform = desktop().await;
        let mut session = platform.session();
        let mut arguments = arguments;
        arguments["action"] = action.into();
        let result = act(&mut session, arguments.clone()).await;
        assert_eq!(text(&result), format!("{action} done (1280x800)"));
        assert!(
            has_image(&result)
                && result.get("structuredContent").is_none()
                && result.get("isError").is_none()
        );
        let step = json!({"actions": batch, "settleMs": 500, "waitForChange": true, "quietMs": 150});
        assert_eq!(sent(&platform), [("Step".to_owned(), step)], "{action}");
        // The same without a look.
        arguments["screenshot_after"] = false.into();
        let result = act(&mut session, arguments).await;
        assert_eq!(
            (text(&result), &result["structuredContent"]),
            (&*format!("{action} done"), &json!({"action": action}))
        );
        assert!(!has_image(&result));
        assert_eq!(sent(&platform)[1..], [("SendActions".to_owned(), json!({"actions": batch}))], "{action}");
    }
}

#[tokio::test]
async fn other_names_are_taken_and_empty_text_is_nothing() {
    let platform = desktop().await;
    let mut session = platform.session();
    let result = act(&mut session, json!({"action": "keypress", "text": "ENTER"})).await;
    assert_eq!(text(&result), "key done (1280x800)");
    let result = act(&mut session, json!({"action": "move", "coordinate": [1, 1]})).await;
    assert_eq!(text(&result), "mouse_move done (1280x800)");
    let result = act(&mut session, json!({"action": "type", "text": ""})).await;
    assert!(has_image(&result) && text(&result) == "type done (1280x800)");
    let calls = sent(&platform).len();
    let result = act(&mut session, json!({"action": "type", "text": "", "screenshot_after": false})).await;
    assert_eq!((text(&result), sent(&platform).len()), ("type done", calls), "no request");
    let methods: Vec<_> = sent(&platform).into_iter().map(|(method, _)| method).collect();
    assert_eq!(methods, ["Step", "Step", "Screenshot"]);
}

#[tokio::test]
async fn what_is_missing_is_named_and_nothing_is_sent() {
    let platform = desktop().await;
    let mut session = platform.session();
    for (arguments, words) in [
        (json!({"action": "left_click"}), "left_click requires coordinate [x, y]"),
        (json!({"action": "left_mouse_up"}), "repeat its last position"),
        (
            json!({"action": "left_click_drag", "coordinate": [1, 2]}),
            "left_click_drag requires start_coordinate [x, y]",
        ),
        (
            json!({"action": "left_click_drag", "start_coordinate": [1, 2]}),
            "left_click_drag requires coordinate [x, y]",
        ),
        (json!({"action": "key"}), "key requires text"),
        (json!({"action": "key", "text": ""}), "key requires text"),
        (json!({"action": "key", "text": "ctrl-s"}), "write `ctrl+s`"),
        (json!({"action": "type"}), "type requires text"),
        (json!({"action": "type", "text": "x".repeat(65_537)}), "at most 65536"),
        (json!({"action": "scroll"}), "scroll requires scroll_direction"),
        (json!({"action": "resize", "width": 800}), "resize requires width and height"),
        (json!({"action": "press"}), "must be one of screenshot, left_click"),
        (
            json!({"action": "left_click", "coordinate": [-1, 2]}),
            "`coordinate` must be two whole numbers [x, y]",
        ),
        (json!({"action": "wait", "duration_ms": 0}), "`duration_ms` must be"),
    ] {
        let text = session.fail(TOOL, with_id(arguments)).await;
        assert!(text.contains("validation") && text.contains(words), "{text}");
    }
    assert!(sent(&platform).is_empty());
}

#[tokio::test]
async fn waiting_is_done_here_and_can_be_cancelled() {
    let platform = desktop().await;
    let mut session = platform.session();
    let result = act(&mut session, json!({"action": "wait", "duration_ms": 10})).await;
    assert_eq!((text(&result), &result["structuredContent"]), ("waited 10ms", &json!({"waited_ms": 10})));
    let arguments = with_id(json!({"action": "wait", "duration_ms": 999_999}));
    let id = session.send("tools/call", json!({"name": TOOL, "arguments": arguments})).await;
    cancel(&mut session, id).await;
    let begun = Instant::now();
    assert_eq!(session.ask("ping", json!({})).await["result"], json!({}));
    assert!(begun.elapsed() < Duration::from_secs(9));
    assert_eq!((sent(&platform).len(), platform.activations()), (0, 0));
}

#[tokio::test]
async fn resizing_passes_on_what_the_platform_says() {
    let platform = desktop().await;
    let mut session = platform.session();
    for arguments in [json!({"width": 1024, "height": 768}), json!({"coordinate": [1024, 768]})] {
        let mut arguments = arguments;
        arguments["action"] = "resize".into();
        let result = act(&mut session, arguments).await;
        assert_eq!(text(&result), "resized to 1024x768");
        assert_eq!(result["structuredContent"], json!({"width": 1024, "height": 768}));
        assert_eq!(
            sent(&platform).pop().unwrap(),
            ("Resize".to_owned(), json!({"width": 1024, "height": 768}))
        );
    }
    let result = act(&mut session, json!({"action": "resize", "width": 2560, "height": 1600})).await;
    assert!(text(&result).starts_with("resized to 2560x1600. ") && text(&result).contains("1366x768"));
    let platform = but("Resize", |_| connect(400, "invalid_argument", "width must be a multiple of 8")).await;
    let mut session = platform.session();
    let text = session.fail(TOOL, with_id(json!({"action": "resize", "width": 801, "height": 600}))).await;
    assert!(text.contains("width must be a multiple of 8"), "{text}");
}

#[tokio::test]
async fn failed_input_may_have_been_delivered_and_is_sent_once() {
    let answers: [fn(&Seen) -> Response<Body>; 4] = [
        |_| connect(500, "internal", "the X server went away"),
        |_| connect(400, "invalid_argument", "unknown key `Foo`"),
        |_| json_answer(502, &json!({})),
        |_| json_answer(200, &json!("done")),
    ];
    for answer in answers {
        for method in ["Step", "SendActions"] {
            let platform = but(method, answer).await;
            let mut session = platform.session();
            let look = method == "Step";
            let arguments = json!({"action": "key", "text": "Foo", "screenshot_after": look});
            let text = session.fail(TOOL, with_id(arguments)).await;
            for words in
                ["key failed and may have been delivered in part or in full: ", "Take a screenshot before"]
            {
                assert!(text.contains(words), "{words} in {text}");
            }
            assert!(!text.contains("safe to retry"), "{text}");
            assert_eq!(sent(&platform).len(), 1, "{:?}", sent(&platform));
        }
    }
    let platform = but("Step", |_| connect(500, "internal", "the X server went away")).await;
    let text = platform.session().fail(TOOL, with_id(json!({"action": "key", "text": "a"}))).await;
    assert!(text.contains("the X server went away"), "{text}");
}

#[tokio::test]
async fn a_batch_that_stopped_shows_where() {
    let platform = but("Step", |_| {
        let error = "the pointer cannot be moved";
        json_answer(200, &json!({"executed": 1, "actionError": error, "screenshot": shot(1280, 800, 0)}))
    })
    .await;
    let mut session = platform.session();
    let result = act(&mut session, json!({"action": "triple_click", "coordinate": [1, 1]})).await;
    assert_eq!(result["isError"], true);
    assert!(result.get("structuredContent").is_none() && has_image(&result));
    for words in
        ["stopped after 1 of 3", "partly delivered", "the pointer cannot be moved", "attached screenshot"]
    {
        assert!(text(&result).contains(words), "{words} in {}", text(&result));
    }
    let platform =
        but("Step", |_| json_answer(200, &json!({"actionError": "no", "captureError": "no picture"}))).await;
    let text =
        platform.session().fail(TOOL, with_id(json!({"action": "triple_click", "coordinate": [1, 1]}))).await;
    assert!(text.contains("stopped after 0 of 3") && text.contains("Take a screenshot"), "{text}");
}

#[tokio::test]
async fn input_without_a_picture_afterwards_is_done_all_the_same() {
    let wrong: [fn(&Seen) -> Response<Body>; 3] = [
        |_| json_answer(200, &json!({"executed": 1, "captureError": "the screen cannot be read"})),
        |_| json_answer(200, &json!({"executed": 1})),
        |_| json_answer(200, &json!({"executed": 1, "screenshot": {"image": "bm8gcGljdHVyZQ=="}})),
    ];
    for answer in wrong {
        let platform = but("Step", answer).await;
        let mut session = platform.session();
        let result = act(&mut session, json!({"action": "left_click", "coordinate": [1, 1]})).await;
        assert!(result.get("isError").is_none() && !has_image(&result), "{result}");
        assert!(
            text(&result).starts_with("left_click done, but the follow-up screenshot failed: "),
            "{result}"
        );
        assert!(text(&result).contains("do not repeat the input"));
        assert_eq!(result["structuredContent"]["action"], "left_click");
        assert!(result["structuredContent"]["screenshot_error"].as_str().is_some_and(|why| !why.is_empty()));
        assert_eq!(sent(&platform).len(), 1);
    }
}

#[tokio::test]
async fn an_agent_without_the_fused_step_gets_two_calls_and_the_input_once() {
    for (status, code) in [(404, "not_found"), (501, "unimplemented"), (404, "")] {
        let missing = Arc::new(Mutex::new(0));
        let count = Arc::clone(&missing);
        let platform = Platform::start(move |seen| {
            let count = Arc::clone(&count);
            async move {
                if seen.path.ends_with("/Step") {
                    *count.lock().unwrap() += 1;
                    return connect(status, code, "no such method");
                }
                good(&seen)
            }
        })
        .await;
        let mut session = platform.session();
        for _ in 0..3 {
            let result = act(&mut session, json!({"action": "left_click", "coordinate": [1, 1]})).await;
            assert_eq!(text(&result), "left_click done (1280x800)");
        }
        let methods: Vec<_> = sent(&platform).into_iter().map(|(method, _)| method).collect();
        assert_eq!(
            methods,
            ["Step", "SendActions", "Screenshot", "SendActions", "Screenshot", "SendActions", "Screenshot"]
        );
        assert_eq!(*missing.lock().unwrap(), 1, "remembered");
    }
    let platform = Platform::start(|seen| async move {
        match seen.path.rsplit('/').next() {
            Some("Step") => connect(404, "", ""),
            Some("Screenshot") => connect(500, "internal", "the screen cannot be read"),
            _ => good(&seen),
        }
    })
    .await;
    let result = act(&mut platform.session(), json!({"action": "left_click", "coordinate": [1, 1]})).await;
    assert!(result.get("isError").is_none() && text(&result).contains("do not repeat the input"), "{result}");
}

#[tokio::test]
async fn what_is_no_desktop_is_told_where_there_is_one() {
    let answers: [fn(&Seen) -> Response<Body>; 3] = [
        |_| connect(501, "unimplemented", ""),
        |_| connect(400, "failed_precondition", "no display"),
        |_| json_answer(404, &json!({"error": {"code": "not_found", "message": "no such path"}})),
    ];
    for answer in answers {
        let platform = Platform::start(move |seen| async move { answer(&seen) }).await;
        let mut session = platform.session();
        for arguments in [
            json!({"action": "screenshot"}),
            json!({"action": "left_click", "coordinate": [1, 1]}),
            json!({"action": "left_click", "coordinate": [5000, 1]}),
            json!({"action": "type", "text": "a", "screenshot_after": false}),
            json!({"action": "resize", "width": 800, "height": 600}),
        ] {
            let text = session.fail(TOOL, with_id(arguments)).await;
            assert!(text.contains("`superserve/desktop`") && text.contains("sandbox_create"), "{text}");
            assert!(!text.contains("safe to retry"), "{text}");
        }
    }
    // A screen may also go away while input is being delivered.
    let platform = but("Step", |_| connect(400, "failed_precondition", "no X server answers")).await;
    let click = json!({"action": "left_click", "coordinate": [1, 1]});
    let text = platform.session().fail(TOOL, with_id(click)).await;
    assert!(
        text.contains("no X server answers") && text.contains("may have been delivered in part"),
        "{text}"
    );
}

#[tokio::test]
async fn an_unknown_sandbox_is_not_found_and_a_paused_one_is_woken() {
    let paused = Arc::new(Mutex::new(true));
    let state = Arc::clone(&paused);
    let platform = Platform::start(move |seen| {
        let paused = std::mem::replace(&mut *state.lock().unwrap(), false);
        async move {
            match paused {
                true => json_answer(
                    503,
                    &json!({"error": {"code": "sandbox_unavailable", "message": "sandbox is paused"}}),
                ),
                false => good(&seen),
            }
        }
    })
    .await;
    let result = act(&mut platform.session(), json!({"action": "left_click", "coordinate": [1, 1]})).await;
    assert_eq!(text(&result), "left_click done (1280x800)");
    assert_eq!((platform.activations(), sent(&platform).len()), (2, 2));
    let platform = Platform::start(|_| async {
        json_answer(404, &json!({"error": {"code": "sandbox_route_stale", "message": "sandbox not found"}}))
    })
    .await;
    for action in ["screenshot", "left_click"] {
        let text =
            platform.session().fail(TOOL, with_id(json!({"action": action, "coordinate": [1, 1]}))).await;
        assert!(text.to_lowercase().contains("not found") && text.contains("sandbox_list"), "{text}");
        assert!(!text.contains("may have been delivered"), "{text}");
    }
}

#[tokio::test]
async fn places_that_the_screen_does_not_have_are_refused_with_its_size() {
    let size = Arc::new(Mutex::new((1280, 800)));
    let now = Arc::clone(&size);
    let platform = Platform::start(move |seen| {
        let (width, height) = *now.lock().unwrap();
        async move {
            match seen.path.rsplit('/').next() {
                Some("Screenshot") => json_answer(200, &shot(width, height, 0)),
                Some("Step") => {
                    json_answer(200, &json!({"executed": 1, "screenshot": shot(width, height, 0)}))
                }
                _ => good(&seen),
            }
        }
    })
    .await;
    let mut session = platform.session();
    for (x, y) in [(1280, 0), (0, 800), (70_000, 5)] {
        let arguments = json!({"action": "left_click", "coordinate": [x, y], "screenshot_after": false});
        let text = session.fail(TOOL, with_id(arguments)).await;
        for words in [
            format!("[{x}, {y}] is outside the screen"),
            "1280x800".to_owned(),
            "Nothing was sent".to_owned(),
        ] {
            assert!(text.contains(&words), "{words} in {text}");
        }
    }
    assert!(sent(&platform).iter().all(|(method, _)| method == "Screenshot"));
    // The corner is on it.
    let corner = json!({"action": "left_click", "coordinate": [1279, 799]});
    assert_eq!(text(&act(&mut session, corner.clone()).await), "left_click done (1280x800)");
    // A screen that grew has it.
    *size.lock().unwrap() = (1600, 1000);
    let result = act(&mut session, json!({"action": "left_click", "coordinate": [1500, 900]})).await;
    assert!(
        text(&result).starts_with("left_click done (1600x1000). Clients may shrink"),
        "{}",
        text(&result)
    );
    // One that shrank behind our back has not, and this shows afterwards.
    *size.lock().unwrap() = (800, 600);
    let result = act(&mut session, corner).await;
    assert!(
        text(&result).contains("left_click done (800x600). [1279, 799] is not on this screen"),
        "{}",
        text(&result)
    );
}

#[tokio::test]
async fn pictures_keep_to_what_clients_take() {
    // Lossless and too large: the same again as JPEG, and the input only once.
    fn heavy(seen: &Seen) -> Response<Body> {
        let jpeg = STANDARD.encode(b"\xff\xd8\xff\xc0\0\x11\x08\x03\x20\x05\x00\x03");
        match (seen.path.rsplit('/').next(), std::str::from_utf8(&seen.body).unwrap().contains("JPEG")) {
            (Some("Screenshot"), true) => json_answer(
                200,
                &json!({"image": jpeg, "width": 1280, "height": 800, "format": "FRAME_FORMAT_JPEG"}),
            ),
            (Some("Screenshot"), false) => json_answer(200, &shot(1280, 800, 3 << 20)),
            _ => json_answer(200, &json!({"executed": 1, "screenshot": shot(1280, 800, 3 << 20)})),
        }
    }
    let platform = Platform::start(|seen| async move { heavy(&seen) }).await;
    let mut session = platform.session();
    for (action, methods) in
        [("screenshot", ["Screenshot", "Screenshot"]), ("left_click", ["Step", "Screenshot"])]
    {
        let before = sent(&platform).len();
        let result = act(&mut session, json!({"action": action, "coordinate": [1, 1]})).await;
        assert_eq!(result["content"][1]["mimeType"], "image/jpeg", "{}", text(&result));
        let called: Vec<_> = sent(&platform).into_iter().skip(before).map(|(method, _)| method).collect();
        assert_eq!(called, methods);
    }
    // An answer beyond all bounds, of input: what it says of the input is not read, so nothing is claimed.
    let platform = Platform::start(|seen| async move {
        match seen.path.ends_with("/Step") {
            true => json_answer(200, &json!({"executed": 1, "screenshot": shot(1280, 800, 9 << 20)})),
            false => heavy(&seen),
        }
    })
    .await;
    let result = act(&mut platform.session(), json!({"action": "left_click", "coordinate": [1, 1]})).await;
    assert_eq!(text(&result), "left_click sent, all of it or only a part (1280x800)");
    // No form of it is small enough.
    let platform = Platform::start(|seen| async move {
        match seen.path.ends_with("/Step") {
            true => heavy(&seen),
            false => json_answer(200, &shot(1280, 800, 9 << 20)),
        }
    })
    .await;
    let mut session = platform.session();
    let said = session.fail(TOOL, with_id(json!({"action": "screenshot"}))).await;
    assert!(said.contains("resize the screen"), "{said}");
    let result = act(&mut session, json!({"action": "left_click", "coordinate": [1, 1]})).await;
    assert!(
        text(&result).contains("left_click done, but") && text(&result).contains("resize the screen"),
        "{result}"
    );
}

#[tokio::test]
async fn the_viewer_is_published_and_private_links_are_signed() {
    for (access, view_only, query) in [
        ("public", false, "autoconnect=1&resize=scale"),
        ("public", true, "autoconnect=1&resize=scale&view_only=1"),
        ("private", true, "autoconnect=1&resize=scale&view_only=1&superserve_preview_token=spv1"),
    ] {
        let platform = Platform::start(move |seen: Seen| async move {
            if seen.path.ends_with("/token") {
                return json_answer(
                    200,
                    &json!({"token": "spv1", "port": 6080, "header": "h",
                    "query_param": "superserve_preview_token", "token_version": 1, "access": "private",
                    "preview_access": "private", "expires_at": "2026-01-02T03:04:05.000000Z"}),
                );
            }
            json_answer(200, &json!({"port": 6080, "access": access, "token_version": 1}))
        })
        .await;
        let mut session = platform.session();
        let result = act(&mut session, json!({"action": "stream_url", "view_only": view_only})).await;
        let url = format!("http://6080-{ID}.box.localhost:1234/vnc.html?{query}");
        assert_eq!((text(&result), &result["structuredContent"]), (&*url, &json!({"url": url})));
        assert_eq!(platform.activations(), 1);
        let calls = sent(&platform);
        assert_eq!(calls[0], (format!("/sandboxes/{ID}/preview-ports"), json!({"port": 6080})));
        assert_eq!(calls.len(), if access == "private" { 2 } else { 1 });
        if let Some((_, token)) = calls.get(1) {
            assert_eq!(token, &json!({"expires_in_seconds": 60}));
        }
    }
}
