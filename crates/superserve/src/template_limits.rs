//! How many templates and builds there may be, and how large (`spec/rest-api.md` §10.3).

use std::time::Duration;

use domain::Shape;
use store::BuildQuota;

use crate::config::{ConfigError, Settings};

/// What the published service gives a team, so that what works here works there; disk is the only cost, so more is a setting.
const DEFAULT_TEMPLATES: u32 = 10;
const DEFAULT_BUILDS: u32 = 10;
/// Pulling and unpacking keep a processor busy, and commands of steps another one.
const DEFAULT_RUNNING: u32 = 2;
const MOST_RUNNING: u32 = 64;
const MOST: u32 = 100_000;
/// MiB of layers that only builds to come would use: a handful of large images, and what steps made over them.
const DEFAULT_CACHE_MIB: u32 = 10_240;
/// Seconds (`spec/semantics.md` §9.1).
const MOST_READY: u32 = 600;

/// What a team may ask for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TemplateLimits {
    pub(crate) quota: BuildQuota,
    /// Builds at once, of all teams.
    pub(crate) running: u32,
    pub(crate) cache_bytes: u64,
    pub(crate) ready_within: Duration,
    pub(crate) shape: Shape,
}

impl TemplateLimits {
    /// Flags over the file over the defaults.
    pub(crate) fn of(flags: &Settings, file: &Settings) -> Result<Self, ConfigError> {
        let value =
            |key: &'static str, get: fn(&Settings) -> Option<u32>, default: u32, least: u32, most: u32| {
                let value = get(flags).or(get(file)).unwrap_or(default);
                let bad = || ConfigError::Range { key, value, least, most };
                (least..=most).contains(&value).then_some(value).ok_or_else(bad)
            };
        let (memory, disk) = (domain::MEMORY_MIB, domain::DISK_MIB);
        Ok(Self {
            quota: BuildQuota {
                templates: value("max_templates", |s| s.max_templates, DEFAULT_TEMPLATES, 0, MOST)?,
                builds: value("max_builds", |s| s.max_builds, DEFAULT_BUILDS, 0, MOST)?,
            },
            running: value("concurrent_builds", |s| s.concurrent_builds, DEFAULT_RUNNING, 1, MOST_RUNNING)?,
            cache_bytes: u64::from(value(
                "build_cache_mib",
                |s| s.build_cache_mib,
                DEFAULT_CACHE_MIB,
                0,
                u32::MAX,
            )?) << 20,
            ready_within: Duration::from_secs(u64::from(value(
                "ready_cmd_seconds",
                |s| s.ready_cmd_seconds,
                MOST_READY,
                1,
                MOST_READY,
            )?)),
            shape: Shape {
                vcpu: value("max_vcpu", |s| s.max_vcpu, domain::MAX_VCPU, 1, domain::MAX_VCPU)?,
                memory_mib: value(
                    "max_memory_mib",
                    |s| s.max_memory_mib,
                    *memory.end(),
                    *memory.start(),
                    *memory.end(),
                )?,
                disk_mib: value("max_disk_mib", |s| s.max_disk_mib, *disk.end(), *disk.start(), *disk.end())?,
            },
        })
    }
}
