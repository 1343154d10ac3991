//! The log of a build: kept as the lines that clients get, in memory while it grows and in a file for afterwards. Anybody
//! may follow it from its beginning, as often as they like.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::{BuildId, BuildStatus, format_timestamp};
use jiff::Timestamp;
use tokio::sync::watch;
use wire::rest::{BuildLogEvent, LogSource};

/// Most bytes of lines of one build; what a build prints beyond is lost, its end is not.
const MAX_BYTES: usize = 4 * 1024 * 1024;
/// A file that is larger than any log can be is none.
const MAX_FILE_BYTES: u64 = 2 * MAX_BYTES as u64;

/// One build's log.
#[derive(Debug)]
pub(crate) struct Log {
    lines: Mutex<Lines>,
    /// How many lines there are, and whether the last one was the last.
    length: watch::Sender<(usize, bool)>,
}

#[derive(Debug, Default)]
struct Lines {
    all: Vec<Arc<str>>,
    bytes: usize,
    cut: bool,
    file: Option<File>,
}

/// Where the logs lie.
#[derive(Debug, Clone)]
pub(crate) struct LogDir(PathBuf);

impl LogDir {
    pub(crate) fn open(state_dir: &Path) -> io::Result<Self> {
        let dir = state_dir.join("builds");
        // Commands may print what is nobody else's business.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&dir)?;
        Ok(Self(dir))
    }

    fn path(&self, id: BuildId) -> PathBuf {
        self.0.join(format!("{id}.log"))
    }

    /// Begins the log of a build; without a file when none can be made.
    pub(crate) fn begin(&self, id: BuildId) -> Arc<Log> {
        let file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(self.path(id));
        let file = file.inspect_err(|error| tracing::warn!(build = %id, %error, "the log is not kept")).ok();
        let lines = Lines { file, ..Lines::default() };
        Arc::new(Log { lines: Mutex::new(lines), length: watch::Sender::new((0, false)) })
    }

    /// The log of a build that ended, whose last word is known in any case. Blocking.
    pub(crate) fn ended(&self, id: BuildId, status: BuildStatus, error: Option<&str>) -> Arc<Log> {
        let mut text = String::new();
        let read =
            File::open(self.path(id)).and_then(|file| file.take(MAX_FILE_BYTES).read_to_string(&mut text));
        if let Err(error) = read {
            tracing::debug!(build = %id, %error, "no log");
        }
        let all: Vec<Arc<str>> = text.lines().map(Arc::from).collect();
        let finished = all.last().is_some_and(|line| {
            serde_json::from_str::<BuildLogEvent>(line).is_ok_and(|event| event.finished)
        });
        let length = all.len();
        let log = Log {
            lines: Mutex::new(Lines { all, cut: true, ..Lines::default() }),
            length: watch::Sender::new((length, finished)),
        };
        if !finished {
            log.finish(status, error);
        }
        Arc::new(log)
    }

    pub(crate) fn remove(&self, id: BuildId) {
        match std::fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(build = %id, %error, "a log stays behind");
            }
            _ => {}
        }
    }

    /// Removes the logs of builds that are no more.
    pub(crate) fn retain(&self, known: &[BuildId]) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.0)? {
            let name = entry?.file_name();
            let id = name.to_str().and_then(|name| name.strip_suffix(".log")?.parse::<BuildId>().ok());
            if let Some(id) = id.filter(|id| !known.contains(id)) {
                self.remove(id);
            }
        }
        Ok(())
    }
}

impl Log {
    /// Something the platform says; a line.
    pub(crate) fn system(&self, text: &str) {
        self.push(LogSource::System, format!("{text}\n"));
    }

    /// Something a command printed.
    pub(crate) fn push(&self, stream: LogSource, text: String) {
        let event = BuildLogEvent { timestamp: now(), stream, text, finished: false, status: None };
        self.append(&event, false);
    }

    /// The last word.
    pub(crate) fn finish(&self, status: BuildStatus, error: Option<&str>) {
        let text = match (status, error) {
            (BuildStatus::Ready, _) => "the template is ready\n".to_owned(),
            (_, Some(error)) => format!("{error}\n"),
            (status, None) => format!("the build is {status}\n"),
        };
        let event = BuildLogEvent {
            timestamp: now(),
            stream: LogSource::System,
            text,
            finished: true,
            status: Some(status.to_string()),
        };
        self.append(&event, true);
    }

    fn append(&self, event: &BuildLogEvent, last: bool) {
        // Strings only: this cannot fail.
        let Ok(line) = serde_json::to_string(event) else { return };
        let mut lines = self.lines();
        if self.length.borrow().1 {
            return;
        }
        if !last && lines.bytes + line.len() > MAX_BYTES {
            if !std::mem::replace(&mut lines.cut, true) {
                let text = format!("the log is longer than {MAX_BYTES} bytes; the rest is left out\n");
                let note = BuildLogEvent { text, stream: LogSource::System, ..event.clone() };
                lines.add(serde_json::to_string(&note).unwrap_or_default());
            }
        } else {
            lines.add(line);
        }
        if last {
            lines.file = None;
        }
        self.length.send_replace((lines.all.len(), last));
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        // The list is whole after each statement that changes it.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns when the last word has been said.
    pub(crate) async fn finished(&self) {
        let mut length = self.length.subscribe();
        // The sender is `self`, which lives.
        let _never_closed = length.wait_for(|(_, finished)| *finished).await;
    }
}

impl Lines {
    fn add(&mut self, line: String) {
        self.bytes += line.len();
        if let Some(file) = &mut self.file {
            // A few bytes into the page cache: quicker than handing them to another thread.
            if let Err(error) = file.write_all(line.as_bytes()).and_then(|()| file.write_all(b"\n")) {
                tracing::warn!(%error, "the log of a build is not kept any further");
                self.file = None;
            }
        }
        self.all.push(line.into());
    }
}

fn now() -> String {
    format_timestamp(Timestamp::now())
}

/// Reads a log from its beginning to its end, while it grows.
#[derive(Debug)]
pub struct Follower {
    log: Arc<Log>,
    length: watch::Receiver<(usize, bool)>,
    next: usize,
}

impl Follower {
    pub(crate) fn new(log: Arc<Log>) -> Self {
        let length = log.length.subscribe();
        Self { log, length, next: 0 }
    }

    /// The next event as JSON; `None` after the last one.
    ///
    /// # Cancel safety
    /// Nothing is lost.
    pub async fn next(&mut self) -> Option<Arc<str>> {
        let next = self.next;
        let (length, _) =
            *self.length.wait_for(|(length, finished)| *length > next || *finished).await.ok()?;
        if length <= next {
            return None;
        }
        self.next += 1;
        self.log.lines().all.get(next).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn texts(log: &Arc<Log>) -> Vec<String> {
        let mut follower = Follower::new(Arc::clone(log));
        let mut texts = Vec::new();
        while let Some(line) = follower.next().await {
            texts.push(serde_json::from_str::<BuildLogEvent>(&line).unwrap().text);
        }
        texts
    }

    #[tokio::test]
    async fn followers_see_everything_whenever_they_come() {
        let dir = tempfile::tempdir().unwrap();
        let logs = LogDir::open(dir.path()).unwrap();
        let id = BuildId::new();
        let log = logs.begin(id);
        log.system("one");
        let early = tokio::spawn({
            let log = Arc::clone(&log);
            async move { texts(&log).await }
        });
        tokio::task::yield_now().await;
        log.push(LogSource::Stdout, "two".to_owned());
        log.finish(BuildStatus::Failed, Some("step_failed: x"));
        log.system("too late");
        log.finished().await;
        let expected = ["one\n", "two", "step_failed: x\n"];
        assert_eq!(early.await.unwrap(), expected);
        assert_eq!(texts(&log).await, expected);
        assert_eq!(texts(&logs.ended(id, BuildStatus::Failed, None)).await, expected);

        // What a server left when it was killed still gets its last word.
        let torn = BuildId::new();
        logs.begin(torn).system("begun");
        let log = logs.ended(torn, BuildStatus::Failed, Some("build_failed: restarted"));
        assert_eq!(texts(&log).await, ["begun\n", "build_failed: restarted\n"]);
        logs.retain(&[torn]).unwrap();
        assert_eq!(texts(&logs.ended(id, BuildStatus::Ready, None)).await, ["the template is ready\n"]);
    }

    #[tokio::test]
    async fn what_is_printed_is_bounded() {
        let dir = tempfile::tempdir().unwrap();
        let logs = LogDir::open(dir.path()).unwrap();
        let log = logs.begin(BuildId::new());
        for _ in 0..200 {
            log.push(LogSource::Stdout, "x".repeat(32 * 1024));
        }
        log.finish(BuildStatus::Ready, None);
        assert!(log.lines().bytes < MAX_BYTES + 1024);
        let texts = texts(&log).await;
        assert_eq!(texts.iter().filter(|text| text.contains("left out")).count(), 1);
        assert_eq!(texts.last().unwrap(), "the template is ready\n");
    }
}
