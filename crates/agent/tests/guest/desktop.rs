//! The desktop's calls where the X server is what a hostile guest makes of it.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use x11rb::protocol::xproto::{
    BackingStore, Depth, Format, ImageOrder, Screen, Setup as Description, VisualClass, Visualtype,
};
use x11rb::x11_utils::Serialize;

use crate::harness::{Agent, Setup, agent, peak_kib};

/// What a server does once it has described itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// It hangs up before it says anything.
    HangsUp,
    /// It says something that is no description.
    Babbles,
    /// It answers nothing.
    IsSilent,
    /// It announces an answer of 16 GiB.
    Boasts,
    /// It sends events without end.
    Floods,
    /// It answers everything with the same, in which all sizes are as large as they can be.
    Lies,
    /// It is honest up to the picture, and says of the pointer on it that it is as large as can be.
    LiesLate,
}

/// A server of a display of its own; gone when dropped.
struct Server {
    display: u32,
    open: Arc<AtomicUsize>,
}

impl Server {
    fn start(number: u32, manner: Manner) -> Self {
        let display = 40_000 + (std::process::id() % 5_000) * 10 % 20_000 + number;
        let directory = std::path::Path::new("/tmp/.X11-unix");
        if std::fs::create_dir(directory).is_ok() {
            std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o1777)).unwrap();
        }
        let path = directory.join(format!("X{display}"));
        let _absent = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).unwrap();
        let open = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&open);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let counter = Arc::clone(&counter);
                counter.fetch_add(1, Ordering::SeqCst);
                std::thread::spawn(move || {
                    // It fails when the agent has had enough.
                    let _ = serve(stream, manner);
                    counter.fetch_sub(1, Ordering::SeqCst);
                });
            }
        });
        Self { display, open }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(format!("/tmp/.X11-unix/X{}", self.display));
    }
}

fn serve(mut stream: UnixStream, manner: Manner) -> std::io::Result<()> {
    let mut hello = [0; 12];
    stream.read_exact(&mut hello)?;
    match manner {
        Manner::HangsUp => return Ok(()),
        Manner::Babbles => return stream.write_all(&[0xff; 4096]),
        Manner::LiesLate => {
            stream.write_all(&description())?;
            return lie_late(stream);
        }
        _ => stream.write_all(&description())?,
    }
    let mut buffer = [0; 4096];
    let mut sequence = 0_u16;
    loop {
        let length = stream.read(&mut buffer)?;
        if length == 0 {
            return Ok(());
        }
        match manner {
            Manner::Boasts => {
                let mut head = [0_u8; 32];
                head[0] = 1;
                head[2] = 1;
                head[4..8].fill(0xff);
                stream.write_all(&head)?;
            }
            Manner::Floods => {
                let events = [[12_u8; 32]; 1024].concat();
                loop {
                    stream.write_all(&events)?;
                }
            }
            Manner::Lies => {
                let mut requests = &buffer[..length];
                while let Some(words) =
                    requests.get(2..4).map(|words| u16::from_ne_bytes([words[0], words[1]]))
                {
                    sequence = sequence.wrapping_add(1);
                    let mut head = [0xff_u8; 32];
                    head[0] = 1;
                    head[2..4].copy_from_slice(&sequence.to_ne_bytes());
                    head[4..8].copy_from_slice(&4_u32.to_ne_bytes());
                    stream.write_all(&head)?;
                    stream.write_all(&[0xff; 16])?;
                    requests = requests.get(usize::from(words.max(1)) * 4..).unwrap_or_default();
                }
            }
            _ => {}
        }
    }
}

/// Everything is answered that a picture without shared memory needs.
fn lie_late(mut stream: UnixStream) -> std::io::Result<()> {
    const XFIXES: u8 = 200;
    const GET_CURSOR_IMAGE: u8 = 4;
    const EDGE: u16 = 64;
    let mut sequence = 0_u16;
    loop {
        let mut head = [0; 4];
        stream.read_exact(&mut head)?;
        let words = usize::from(u16::from_ne_bytes([head[2], head[3]]));
        let mut rest = vec![0; words * 4 - 4];
        stream.read_exact(&mut rest)?;
        sequence = sequence.wrapping_add(1);
        let mut answer = vec![0_u8; 32];
        answer[0] = 1;
        answer[2..4].copy_from_slice(&sequence.to_ne_bytes());
        match (head[0], head[1]) {
            // GetGeometry
            (14, _) => {
                answer[16..18].copy_from_slice(&EDGE.to_ne_bytes());
                answer[18..20].copy_from_slice(&EDGE.to_ne_bytes());
            }
            // GetImage
            (73, _) => {
                let words = u32::from(EDGE) * u32::from(EDGE);
                answer[4..8].copy_from_slice(&words.to_ne_bytes());
                answer.resize(32 + words as usize * 4, 7);
            }
            // QueryExtension
            (98, _) if rest.get(4..10) == Some(b"XFIXES") => answer[8..10].copy_from_slice(&[1, XFIXES]),
            (XFIXES, GET_CURSOR_IMAGE) => answer[12..16].fill(0xff),
            _ => {}
        }
        stream.write_all(&answer)?;
    }
}

fn description() -> Vec<u8> {
    let visual = Visualtype {
        visual_id: 1,
        class: VisualClass::TRUE_COLOR,
        bits_per_rgb_value: 8,
        colormap_entries: 256,
        red_mask: 0xff_0000,
        green_mask: 0xff00,
        blue_mask: 0xff,
    };
    let screen = Screen {
        root: 1,
        default_colormap: 1,
        white_pixel: 0xff_ffff,
        black_pixel: 0,
        current_input_masks: 0_u32.into(),
        width_in_pixels: 1280,
        height_in_pixels: 800,
        width_in_millimeters: 300,
        height_in_millimeters: 200,
        min_installed_maps: 1,
        max_installed_maps: 1,
        root_visual: 1,
        backing_stores: BackingStore::NOT_USEFUL,
        save_unders: false,
        root_depth: 24,
        allowed_depths: vec![Depth { depth: 24, visuals: vec![visual] }],
    };
    let mut described = Description {
        status: 1,
        protocol_major_version: 11,
        protocol_minor_version: 0,
        length: 0,
        release_number: 1,
        resource_id_base: 0x0020_0000,
        resource_id_mask: 0x001f_ffff,
        motion_buffer_size: 0,
        maximum_request_length: u16::MAX,
        image_byte_order: ImageOrder::LSB_FIRST,
        bitmap_format_bit_order: ImageOrder::LSB_FIRST,
        bitmap_format_scanline_unit: 32,
        bitmap_format_scanline_pad: 32,
        min_keycode: 8,
        max_keycode: 255,
        vendor: b"evil".to_vec(),
        pixmap_formats: vec![Format { depth: 24, bits_per_pixel: 32, scanline_pad: 32 }],
        roots: vec![screen],
    };
    described.length = u16::try_from((described.serialize().len() - 8) / 4).unwrap();
    described.serialize()
}

fn call(agent: &Agent, method: &str, body: &Value) -> (u16, Value) {
    let path = format!("/superserve.boxd.v1.DesktopService/{method}");
    let answer = agent.send("POST", &path, body.to_string().as_bytes());
    (answer.status, answer.json())
}

fn configured(display: &str) -> Agent {
    Agent::start(Setup { config: Some(json!({"env": {"DISPLAY": display}})), ..Setup::default() })
}

#[test]
fn no_display_is_said_so() {
    let click = json!({"x": 1, "y": 1, "action": "POINTER_ACTION_CLICK"});
    for agent in [agent(), configured("elsewhere:1"), configured(":39999")] {
        for (method, body) in
            [("Screenshot", json!({})), ("SendPointer", click.clone()), ("SendKey", json!({"text": "a"}))]
        {
            let (status, answer) = call(&agent, method, &body);
            assert_eq!((status, &answer["code"]), (400, &json!("failed_precondition")), "{answer}");
        }
        // Checked before.
        let (status, answer) = call(&agent, "SendKey", &json!({"key": "No such key"}));
        assert_eq!((status, &answer["code"]), (400, &json!("invalid_argument")), "{answer}");
        let refused = agent.get("/superserve.boxd.v1.DesktopService/Screenshot");
        assert_eq!(refused.status, 405);
    }
}

#[test]
fn a_hostile_server_costs_nothing_but_an_answer() {
    let manners = [
        Manner::HangsUp,
        Manner::Babbles,
        Manner::Boasts,
        Manner::Floods,
        Manner::Lies,
        Manner::LiesLate,
        Manner::IsSilent,
    ];
    // At a time, as the silent one is waited for.
    std::thread::scope(|scope| {
        for (number, manner) in (0..).zip(manners) {
            scope.spawn(move || meet(&Server::start(number, manner), manner));
        }
    });
}

fn meet(server: &Server, manner: Manner) {
    let agent = configured(&format!(":{}", server.display));
    let descriptors = || std::fs::read_dir(format!("/proc/{}/fd", agent.pid())).unwrap().count();
    let before = descriptors();
    let begun = Instant::now();
    // Both threads at a time, and neither waits for the other.
    std::thread::scope(|scope| {
        let picture = scope.spawn(|| call(&agent, "Screenshot", &json!({})));
        let typed = scope.spawn(|| call(&agent, "SendKey", &json!({"text": "ä"})));
        let picture = picture.join().unwrap();
        if manner == Manner::LiesLate {
            let said = picture.1["message"].as_str().unwrap();
            assert!(said.contains("its pointer is incomplete"), "{said}");
        }
        for (status, answer) in [picture, typed.join().unwrap()] {
            assert!([400, 500].contains(&status), "{manner:?}: {status} {answer}");
            assert!(!answer["message"].as_str().unwrap().is_empty());
        }
    });
    if manner != Manner::IsSilent {
        let (status, answer) = call(&agent, "Resize", &json!({"width": 1024, "height": 768}));
        assert!([400, 500].contains(&status), "{manner:?}: {status} {answer}");
    }
    assert!(begun.elapsed() < Duration::from_secs(60), "{manner:?}");
    // Commands go on, and nothing is left but what may be used again.
    assert_eq!(agent.run("echo ok").stdout, "ok\n");
    let kept = if manner == Manner::Lies { 2 } else { 0 };
    let until = Instant::now() + Duration::from_secs(10);
    while server.open.load(Ordering::SeqCst) > kept || descriptors() > before + kept {
        assert!(Instant::now() < until, "{manner:?}: {:?}, {} of {before}", server.open, descriptors());
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(peak_kib(agent.pid()) < 64 * 1024, "{manner:?}: {} KiB", peak_kib(agent.pid()));
}
