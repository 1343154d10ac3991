//! How many templates and builds there may be, and how large (`spec/rest-api.md` §10.3).

use domain::Shape;
use store::BuildQuota;

use crate::config::{ConfigError, Settings};

/// As many as active sandboxes: templates cost disk only, and share it.
const DEFAULT_TEMPLATES: u32 = 50;
const DEFAULT_BUILDS: u32 = 10;
/// Pulling and unpacking keep a processor busy, and commands of steps another one.
const DEFAULT_RUNNING: u32 = 2;
const MOST_RUNNING: u32 = 64;
const MOST: u32 = 100_000;

/// What a team may ask for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TemplateLimits {
    pub(crate) quota: BuildQuota,
    /// Builds at once, of all teams.
    pub(crate) running: u32,
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
