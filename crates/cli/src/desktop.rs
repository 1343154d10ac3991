//! `sandbox screenshot`, `sandbox record` and `sandbox view`: looking at a desktop. A screenshot wakes a paused sandbox; a
//! recording does at its start, and ends when the sandbox is paused later.

use std::fs::File;
use std::io::{BufWriter, IsTerminal};
use std::path::{Path, PathBuf};
use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use client::{Client, ClientError, FrameFormat, MAX_PICTURE_ANSWER_BYTES, ScreenshotResponse};
use tokio::time::{Instant, MissedTickBehavior};

use crate::args::{RecordArgs, ScreenshotArgs};
use crate::avi::Avi;
use crate::error::{CliError, INTERRUPTED};
use crate::interrupt::interrupts;
use crate::out::{self, Stop, printable};

/// Largest recording, bytes: what old players read.
const MAX_RECORDING: u64 = 1024 * 1024 * 1024;

/// One picture, to a file or to standard output.
pub(crate) async fn screenshot(args: ScreenshotArgs, client: &Client, json: bool) -> Result<(), Stop> {
    let ScreenshotArgs { id, output, format } = args;
    let format = match format.as_deref() {
        Some("jpeg") => FrameFormat::Jpeg,
        Some(_) => FrameFormat::Png,
        None if output.as_deref().is_some_and(names_jpeg) => FrameFormat::Jpeg,
        None => FrameFormat::Png,
    };
    let to_stdout = output.as_deref() == Some(Path::new("-"));
    if to_stdout && json {
        return Err(CliError::new("-o - and --json both want standard output").into());
    }
    if to_stdout && std::io::stdout().is_terminal() {
        let error = CliError::new("a picture is nothing for a terminal");
        return Err(error.hint("name a file with -o FILE, or send it on with `-o - | …`").into());
    }
    let shot = client.screenshot(&id, format, MAX_PICTURE_ANSWER_BYTES).await;
    let shot = shot.map_err(|error| of_desktop(&error, &id))?;
    let picture = decoded(&shot)?;
    if to_stdout {
        return out::raw(&picture);
    }
    let path = output.unwrap_or_else(|| PathBuf::from(default_name(&id, shot.format)));
    std::fs::write(&path, &picture).map_err(|error| cannot_write(&path, &error))?;
    if json {
        return out::json(&serde_json::json!({
            "path": path, "width": shot.width, "height": shot.height, "bytes": picture.len(), "format": word(shot.format),
        }));
    }
    out::line(&printable(&path.to_string_lossy()))
}

/// The address of the live view.
pub(crate) async fn view(id: &str, view_only: bool, client: &Client, json: bool) -> Result<(), Stop> {
    let url = client.viewer_url(id, view_only).await.map_err(|error| CliError::of_sandbox(&error, id))?;
    if json {
        out::json(&serde_json::json!({ "sandbox_id": id, "url": url }))
    } else {
        out::line(&printable(&url))
    }
}

/// Why a recording ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Time,
    Interrupt,
    Full,
    /// All frames of a video have one size.
    Resized,
    /// It was paused or deleted.
    NotRunning,
}

/// A video of what the screen shows from now on. Ctrl-C ends it and leaves a whole file.
pub(crate) async fn record(args: RecordArgs, client: &Client, json: bool) -> Result<u8, Stop> {
    let RecordArgs { id, output, seconds, fps } = args;
    let mut interrupts = interrupts()?;
    let first = tokio::select! {
        shot = client.screenshot(&id, FrameFormat::Jpeg, MAX_PICTURE_ANSWER_BYTES) => shot,
        _ = interrupts.recv() => return Ok(INTERRUPTED),
    };
    let first = first.map_err(|error| of_desktop(&error, &id))?;
    let failed = |error: std::io::Error| cannot_write(&output, &error);
    let mut recording = Recording::begin(&output, &first, fps, seconds)?;
    if !json {
        out::note(&format!("recording to {}; Ctrl-C ends it", output.display()));
    }
    let end = tokio::select! {
        end = recording.run(client, &id) => end,
        _ = interrupts.recv() => Ok(End::Interrupt),
    };
    let (frames, bytes) = (recording.video.frames(), recording.video.size());
    let seconds = (recording.begun.elapsed().as_secs_f64() * 10.0).round() / 10.0;
    recording.video.finish().map_err(failed)?;
    let end =
        end.map_err(|error| error.hint(format!("{} has what was recorded until then", output.display())))?;
    if json {
        out::json(&serde_json::json!({
            "path": output, "frames": frames, "fps": fps, "seconds": seconds, "bytes": bytes, "width": first.width,
            "height": first.height, "end": end.word(),
        }))?;
    } else {
        out::line(&format!("{frames} frames in {seconds} s, {bytes} bytes{}", end.remark()))?;
    }
    Ok(0)
}

/// A video under way. Its first picture is in it.
struct Recording {
    video: Avi<BufWriter<File>>,
    path: PathBuf,
    /// Of all pictures.
    size: (i64, i64),
    last: Vec<u8>,
    begun: Instant,
    fps: u32,
    most_frames: usize,
}

impl Recording {
    fn begin(path: &Path, first: &ScreenshotResponse, fps: u32, seconds: u32) -> Result<Self, CliError> {
        let last = decoded(first)?;
        let (Ok(width), Ok(height)) = (u16::try_from(first.width), u16::try_from(first.height)) else {
            return Err(CliError::new("the sandbox sent a picture without a size"));
        };
        let failed = |error: std::io::Error| cannot_write(path, &error);
        let file = File::create(path).map_err(failed)?;
        let mut video = Avi::new(BufWriter::new(file), width, height, fps).map_err(failed)?;
        video.frame(&last).map_err(failed)?;
        Ok(Self {
            video,
            path: path.to_owned(),
            size: (first.width, first.height),
            last,
            begun: Instant::now(),
            fps,
            most_frames: usize::try_from(seconds * fps).unwrap_or(usize::MAX),
        })
    }

    /// # Cancel safety
    /// What was recorded is in the file.
    async fn run(&mut self, client: &Client, id: &str) -> Result<End, CliError> {
        let mut ticks = tokio::time::interval(Duration::from_secs(1) / self.fps);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        ticks.tick().await;
        while self.video.frames() < self.most_frames {
            ticks.tick().await;
            let shot = match client.screenshot_if_running(id, FrameFormat::Jpeg).await {
                Err(error) if gone(&error) => return Ok(End::NotRunning),
                shot => shot.map_err(|error| of_desktop(&error, id))?,
            };
            if (shot.width, shot.height) != self.size {
                return Ok(End::Resized);
            }
            let picture = decoded(&shot)?;
            if self.video.size() + picture.len() as u64 > MAX_RECORDING {
                return Ok(End::Full);
            }
            self.add(picture).map_err(|error| cannot_write(&self.path, &error))?;
        }
        Ok(End::Time)
    }

    /// As the frame of this moment. Frames that there was no time for, and those without a change, show the one before.
    fn add(&mut self, picture: Vec<u8>) -> std::io::Result<()> {
        let passed = u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        let now = usize::try_from((passed * u64::from(self.fps) + 500) / 1000).unwrap_or(usize::MAX);
        for _ in self.video.frames()..now.min(self.most_frames - 1) {
            self.video.frame(&[])?;
        }
        self.video.frame(if picture == self.last { &[] } else { &picture })?;
        self.last = picture;
        Ok(())
    }
}

impl End {
    fn word(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Interrupt => "interrupted",
            Self::Full => "full",
            Self::Resized => "resized",
            Self::NotRunning => "not_running",
        }
    }

    fn remark(self) -> &'static str {
        match self {
            Self::Time | Self::Interrupt => "",
            Self::Full => "; ended because the file has 1 GiB",
            Self::Resized => "; ended because the screen has another size now",
            Self::NotRunning => "; ended because the sandbox does not run any more",
        }
    }
}

/// It does not run, and nobody asked it to.
fn gone(error: &ClientError) -> bool {
    error.api().is_some_and(|api| {
        matches!(api.code.as_str(), "sandbox_unavailable" | "sandbox_route_stale")
            || matches!(api.status, 404 | 410)
    })
}

/// The bytes of a picture, which are what they are said to be: the guest made them.
fn decoded(shot: &ScreenshotResponse) -> Result<Vec<u8>, CliError> {
    let bytes = STANDARD.decode(&shot.image).unwrap_or_default();
    let begin: &[u8] = match shot.format {
        FrameFormat::Png => b"\x89PNG\r\n\x1a\n",
        FrameFormat::Jpeg => b"\xff\xd8\xff",
    };
    match bytes.starts_with(begin) {
        true => Ok(bytes),
        false => Err(CliError::new("the sandbox sent something that is no picture")),
    }
}

/// A failed look.
fn of_desktop(error: &ClientError, id: &str) -> CliError {
    let shown = CliError::of_sandbox(error, id);
    let code = error.api().map_or("", |api| api.code.as_str());
    match error.status() {
        Some(400) if code == "failed_precondition" => {
            shown.hint("superserve sandbox create --template superserve/desktop")
        }
        Some(404 | 501) if code != "sandbox_route_stale" && code != "not_found" => {
            CliError { message: "this sandbox has no desktop".to_owned(), ..shown }
                .hint("superserve sandbox create --template superserve/desktop")
        }
        _ => shown,
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> CliError {
    CliError::new(format!("cannot write {}: {error}", path.display()))
}

fn names_jpeg(path: &Path) -> bool {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    extension.eq_ignore_ascii_case("jpg") || extension.eq_ignore_ascii_case("jpeg")
}

/// Sandbox and second, so that one screenshot does not replace another.
fn default_name(id: &str, format: FrameFormat) -> String {
    let seconds =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_secs();
    let id: String = id.chars().filter(|c| c.is_ascii_alphanumeric()).take(8).collect();
    let extension = if format == FrameFormat::Jpeg { "jpg" } else { "png" };
    format!("{id}-{seconds}.{extension}")
}

fn word(format: FrameFormat) -> &'static str {
    match format {
        FrameFormat::Png => "png",
        FrameFormat::Jpeg => "jpeg",
    }
}
