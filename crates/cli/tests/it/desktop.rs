//! Screens that change, end, or are none. How a real one looks is shown elsewhere.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::platform::{ID, Platform};
use crate::run;

fn jpeg(width: u16, n: u8) -> (u16, Value) {
    let image = STANDARD.encode([0xff, 0xd8, 0xff, n]);
    (200, json!({"image": image, "width": width, "height": 800, "format": "FRAME_FORMAT_JPEG"}))
}

/// Pictures in the video, by its head.
fn frames(file: &[u8]) -> u32 {
    u32::from_le_bytes(file[48..52].try_into().unwrap())
}

#[tokio::test]
async fn a_recording_ends_whole_when_the_screen_does() {
    let gone = |status: u16, code: &str| (status, json!({"error": {"code": code, "message": "no"}}));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.avi");
    for (end, code) in [
        (jpeg(800, 4), 0),
        (gone(503, "sandbox_unavailable"), 0),
        (gone(410, "gone"), 0),
        ((500, json!({"code": "internal", "message": "the X server failed"})), 1),
        ((200, json!({"image": "bm8=", "width": 1280, "height": 800, "format": "FRAME_FORMAT_JPEG"})), 1),
    ] {
        let platform = Platform::start().await;
        platform.shows(vec![jpeg(1280, 1), jpeg(1280, 2), jpeg(1280, 2), end]);
        let words = ["record", ID, "-o", path.to_str().unwrap(), "--fps", "15", "--seconds", "30"];
        let result = run(&platform, &words).await;
        let file = std::fs::read(&path).unwrap();
        assert_eq!(file.len() - 8, u32::from_le_bytes(file[4..8].try_into().unwrap()) as usize);
        assert!(frames(&file) >= 3, "{}", frames(&file));
        let pictures = file.windows(3).filter(|bytes| bytes == &[0xff, 0xd8, 0xff]).count();
        assert_eq!(pictures, 2, "what does not change is not kept again");
        match result {
            Ok(done) => assert_eq!((done, code), (0, 0)),
            Err(error) => {
                assert_eq!(code, 1);
                assert!(error.hint.unwrap().contains("r.avi has what was recorded"));
            }
        }
    }
}

#[tokio::test]
async fn what_is_no_screen_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let path = path.to_str().unwrap();
    for (answer, said) in [
        ((400, json!({"code": "failed_precondition", "message": "no display"})), "superserve/desktop"),
        ((501, json!({"code": "unimplemented", "message": ""})), "superserve/desktop"),
        ((200, json!({"image": "PHNjcmlwdD4=", "width": 1, "height": 1})), "no picture"),
    ] {
        for words in [&["screenshot", ID, "-o", path][..], &["record", ID, "-o", path]] {
            let platform = Platform::start().await;
            platform.shows(vec![answer.clone()]);
            let failed = run(&platform, words).await.unwrap_err();
            let text = format!("{} {}", failed.message, failed.hint.unwrap_or_default());
            assert!(text.contains(said), "{text}");
            assert!(!std::path::Path::new(path).exists());
        }
    }
}
