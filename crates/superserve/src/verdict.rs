//! What is known of engines that had to prove themselves: `<state_dir>/engines.json`, mode 0600.
//!
//! A verdict is about files, a processor and a kernel, and holds for as long as these are the same. One against an engine is
//! tried again after a restart of the host, and after a week: until then nobody waits for the same failure twice.

use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use domain::Engine;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::config::Config;
use crate::engine::{self, Absent};
use crate::state_dir::write_private;

/// Another one when engines have to show something else.
const FORMAT: &str = "superserve proof 2";
/// What made an engine fail once, a busy host say, may be over.
const AGAINST_HOLDS: Duration = Duration::from_secs(7 * 24 * 3600);
/// What had too little time is tried again by the next starts; whoever is always too slow is not waited for at each.
const LATE_TRIES: u8 = 3;
/// A few lines; a larger file is somebody else's.
const MAX_BYTES: u64 = 64 * 1024;
/// The words of a failure that are kept.
const WHY_CHARS: usize = 600;

/// What speaks against an engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Against {
    pub(crate) why: String,
    /// It had too little time, which a busy host may be the cause of.
    pub(crate) late: bool,
}

/// What came of a proof.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verdict {
    /// Of what it is true.
    key: String,
    /// Of which layers the machine was.
    #[serde(default)]
    layers: String,
    /// The start of the host during which it was made.
    boot: String,
    /// When it was made, seconds since 1970.
    at: i64,
    /// How long the proof took.
    pub(crate) took_ms: u64,
    /// Why the engine is not chosen; `None` when it has proved itself.
    pub(crate) against: Option<String>,
    /// How often in a row it had too little time.
    #[serde(default)]
    late: u8,
}

impl Verdict {
    pub(crate) fn new(subject: &Subject, took: Duration, outcome: Result<(), Against>) -> Self {
        let late = outcome.as_ref().is_err_and(|against| against.late);
        let against = outcome.err().map(|Against { why, .. }| {
            // A guest's kernel may have had a part in the words.
            why.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WHY_CHARS).collect()
        });
        let took_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
        Self {
            key: subject.key.clone(),
            layers: subject.layers.clone().unwrap_or_default(),
            boot: subject.boot.clone(),
            at: Timestamp::now().as_second(),
            took_ms,
            against,
            late: u8::from(late),
        }
    }

    /// Whether the next start tries again.
    pub(crate) fn may_change(&self) -> bool {
        (1..LATE_TRIES).contains(&self.late)
    }

    /// When it was made.
    pub(crate) fn at(&self) -> Timestamp {
        Timestamp::from_second(self.at).unwrap_or_default()
    }

    fn is_about(&self, subject: &Subject) -> bool {
        self.key == subject.key && subject.layers.as_ref().is_none_or(|layers| *layers == self.layers)
    }

    fn holds(&self, subject: &Subject, now: Timestamp) -> bool {
        let recent = || {
            let age = u64::try_from(now.as_second() - self.at);
            age.is_ok_and(|seconds| Duration::from_secs(seconds) < AGAINST_HOLDS)
        };
        self.is_about(subject) && (self.against.is_none() || (self.boot == subject.boot && recent()))
    }
}

/// What a verdict is about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Subject {
    key: String,
    /// Of which layers its machines are; `None` for whoever asks without the database.
    layers: Option<String>,
    boot: String,
}

impl Subject {
    /// # Errors
    /// Something of the engine is not here.
    pub(crate) fn of(config: &Config, engine: Engine, layers: Option<&[String]>) -> Result<Self, Absent> {
        let mut hasher = Sha256::new();
        let mut add = |text: &str| {
            hasher.update(text.len().to_le_bytes());
            hasher.update(text);
        };
        add(FORMAT);
        add(engine.as_str());
        for file in engine::needs(config, engine)?.iter().chain([&config.agent]) {
            add(&file.display().to_string());
            add(&identity(file).unwrap_or_default());
        }
        for file in ["/proc/sys/kernel/osrelease", "/proc/sys/kernel/version"] {
            add(&std::fs::read_to_string(file).unwrap_or_default());
        }
        // The first processor: what it is and what it can do.
        let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        for line in processor.lines().take_while(|line| !line.is_empty()) {
            if ["vendor_id", "model name", "flags"].iter().any(|field| line.starts_with(field)) {
                add(line);
            }
        }
        add(&digest(&config.agent).unwrap_or_default());
        let key = hex(&hasher.finalize());
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        // Their names are what is in them.
        let layers = layers.map(|layers| hex(&Sha256::digest(layers.join("\n"))));
        Ok(Self { key, layers, boot: boot.trim().to_owned() })
    }
}

/// A file that is replaced or changed has another one. Devices are made at each start of the host and are all alike.
fn identity(file: &Path) -> io::Result<String> {
    let of = std::fs::metadata(file)?;
    if !of.is_file() && !of.is_dir() {
        return Ok(String::new());
    }
    Ok(format!("{} {} {} {}.{}", of.dev(), of.ino(), of.len(), of.mtime(), of.mtime_nsec()))
}

fn digest(file: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    io::copy(&mut std::fs::File::open(file)?, &mut hasher)?;
    Ok(hex(&hasher.finalize()))
}

fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// All that is known.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    file: PathBuf,
    of: BTreeMap<Engine, Verdict>,
    chosen: Option<Engine>,
}

/// The file's content.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Kept {
    /// What `auto` came to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    chosen: Option<String>,
    #[serde(flatten)]
    of: BTreeMap<String, Verdict>,
}

impl Verdicts {
    /// What was kept; nothing where that cannot be read.
    pub(crate) fn load(state_dir: &Path) -> Self {
        let file = state_dir.join("engines.json");
        let small = std::fs::metadata(&file).is_ok_and(|of| of.len() <= MAX_BYTES);
        let text = small.then(|| std::fs::read(&file).ok()).flatten().unwrap_or_default();
        let kept: Kept = serde_json::from_slice(&text).unwrap_or_default();
        let of = kept.of.into_iter().filter_map(|(name, verdict)| Some((name.parse().ok()?, verdict)));
        Self { file, of: of.collect(), chosen: kept.chosen.and_then(|name| name.parse().ok()) }
    }

    /// The verdict on an engine, if it holds for the present one.
    pub(crate) fn on(&self, engine: Engine, subject: &Subject) -> Option<&Verdict> {
        self.of.get(&engine).filter(|verdict| verdict.holds(subject, Timestamp::now()))
    }

    /// The engine that `auto` came to last.
    pub(crate) fn chosen(&self) -> Option<Engine> {
        self.chosen
    }

    pub(crate) fn choose(&mut self, engine: Engine) {
        self.chosen = Some(engine);
    }

    pub(crate) fn set(&mut self, engine: Engine, mut verdict: Verdict) {
        if let Some(former) = self.of.get(&engine)
            && verdict.late > 0
            && (&former.key, &former.layers) == (&verdict.key, &verdict.layers)
        {
            verdict.late = former.late.saturating_add(1);
        }
        self.of.insert(engine, verdict);
    }

    /// Keeps them. Whoever cannot proves again next time.
    pub(crate) fn save(&self) {
        let of = self.of.iter().map(|(engine, verdict)| (engine.as_str().to_owned(), verdict.clone()));
        let kept = Kept { chosen: self.chosen.map(|engine| engine.to_string()), of: of.collect() };
        let written = serde_json::to_vec_pretty(&kept)
            .map_err(io::Error::other)
            .and_then(|text| write_private(&self.file, &text).map_err(io::Error::other));
        if let Err(error) = written {
            tracing::warn!(%error, "what was found out of the isolation engines is not kept");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn subject(key: &str, boot: &str) -> Subject {
        Subject { key: key.to_owned(), layers: Some("l".to_owned()), boot: boot.to_owned() }
    }

    #[test]
    fn a_verdict_is_kept_for_what_it_is_about() {
        let dir = tempfile::tempdir().unwrap();
        let now = subject("k", "b");
        let mut verdicts = Verdicts::load(dir.path());
        assert_eq!(verdicts.on(Engine::Qemu, &now), None);
        let against = Against { why: "a\u{1b}b".repeat(1_000), late: false };
        verdicts.set(Engine::Qemu, Verdict::new(&now, Duration::from_millis(7), Err(against)));
        verdicts.set(Engine::Gvisor, Verdict::new(&now, Duration::from_millis(7), Ok(())));
        verdicts.save();
        let mode = std::fs::metadata(dir.path().join("engines.json")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);

        let kept = Verdicts::load(dir.path());
        let against = kept.on(Engine::Qemu, &now).unwrap().against.clone().unwrap();
        assert!(against.len() == WHY_CHARS && against.starts_with("a ba b"), "{against}");
        assert_eq!(kept.on(Engine::Gvisor, &now).unwrap().against, None);
        for changed in [subject("other", "b"), subject("other", "c")] {
            assert_eq!((kept.on(Engine::Qemu, &changed), kept.on(Engine::Gvisor, &changed)), (None, None));
        }
        let on_others = Subject { layers: Some("m".to_owned()), ..now.clone() };
        assert_eq!(kept.on(Engine::Gvisor, &on_others), None, "another base template is another computer");
        assert!(kept.on(Engine::Gvisor, &Subject { layers: None, ..now.clone() }).is_some());
        // A restart of the host gives another chance, and takes none.
        let restarted = subject("k", "c");
        assert!(kept.on(Engine::Qemu, &restarted).is_none() && kept.on(Engine::Gvisor, &restarted).is_some());
        // So does time; a clock that was wrong is no time.
        let verdict = kept.on(Engine::Qemu, &now).unwrap();
        let later = |seconds| verdict.at() + jiff::SignedDuration::from_secs(seconds);
        for (seconds, holds) in [(0, true), (6 * 86_400, true), (8 * 86_400, false), (-60, false)] {
            assert_eq!(verdict.holds(&now, later(seconds)), holds, "{seconds}");
        }
        for damage in [&b"{"[..], b"[]", &vec![b' '; 70_000]] {
            std::fs::write(dir.path().join("engines.json"), damage).unwrap();
            assert!(Verdicts::load(dir.path()).of.is_empty());
        }
    }
}
