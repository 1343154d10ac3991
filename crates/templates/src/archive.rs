//! Reads a tar archive entry by entry and hands each to the [`Tree`]. Long names and pax headers are read here, with a
//! bound on their size: the archive is hostile.

use std::io::Read;

use pack::{capability, is_own_attribute};
use tar::{Entry, EntryType, Header};

use crate::error::TemplateError;
use crate::pax;
use crate::source::{Source, Stopped};
use crate::store::Limits;
use crate::tree::{Kind, Member, Tree};
use crate::{ID_COUNT, ID_SHIFT};

/// Longest name or link target: `PATH_MAX` of Linux.
const MAX_NAME: u64 = 4096;
/// Largest pax header: room for two names and a handful of attributes.
const MAX_PAX: u64 = 64 * 1024;
/// Latest time a file may carry, the end of the year 9999: some file systems refuse more.
const MAX_MTIME: u64 = 253_402_300_799;
/// Files and directories after which the disk is asked for room again, however few bytes of the archive they took: with
/// what one name more may imply, far fewer than the inodes that are left to others.
const ROOM_EVERY: u64 = 2_000;

/// What was unpacked and what was left out.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Bytes of file content.
    pub(crate) bytes: u64,
    /// Entries, and directories that they imply.
    pub(crate) entries: u64,
    /// Device nodes that were left out: a sandbox gets its devices from the engine.
    pub(crate) devices: u64,
}

impl Counts {
    fn count(&mut self, entries: u64, limits: Limits) -> Result<(), TemplateError> {
        self.entries += entries;
        if self.entries > limits.entries {
            return Err(TemplateError::TooLarge { limit: limits.entries, unit: "entries" });
        }
        Ok(())
    }
}

/// Unpacks the whole archive.
pub(crate) fn unpack(
    source: &mut Source<'_>,
    tree: &mut Tree,
    limits: Limits,
    progress: &dyn Fn(u64),
) -> Result<Counts, TemplateError> {
    let limit = limits.bytes;
    let result = unpack_entries(source, tree, limits, progress);
    match source.stopped() {
        Some(Stopped::Limit) => Err(TemplateError::TooLarge { limit, unit: "bytes" }),
        Some(Stopped::DiskFull) => Err(TemplateError::DiskFull),
        None => result,
    }
}

fn unpack_entries(
    source: &mut Source<'_>,
    tree: &mut Tree,
    limits: Limits,
    progress: &dyn Fn(u64),
) -> Result<Counts, TemplateError> {
    let room = source.room();
    let mut archive = tar::Archive::new(source);
    let mut counts = Counts::default();
    let mut asked_at = 0;
    let mut extra = Extra::default();
    // Raw: the crate would read long names and pax headers of any size into memory.
    for entry in archive.entries().map_err(TemplateError::BadArchive)?.raw(true) {
        let mut entry = entry.map_err(TemplateError::BadArchive)?;
        counts.count(1, limits)?;
        match entry.header().entry_type() {
            EntryType::GNULongName => extra.path = Some(read_name(&mut entry)?),
            EntryType::GNULongLink => extra.link = Some(read_name(&mut entry)?),
            EntryType::XHeader => extra.read_pax(&read_bounded(&mut entry, MAX_PAX)?)?,
            // Comments and defaults of the whole archive; nothing that Linux tools put there matters for a file.
            EntryType::XGlobalHeader => {}
            _ => {
                let Some(member) = std::mem::take(&mut extra).complete(entry.header())? else {
                    counts.devices += 1;
                    continue;
                };
                let implied = tree.implied();
                counts.bytes += tree.put(&member, &mut entry)?;
                counts.count(tree.implied() - implied, limits)?;
                if counts.entries - asked_at >= ROOM_EVERY {
                    asked_at = counts.entries;
                    if !room() {
                        return Err(TemplateError::DiskFull);
                    }
                }
                progress(entry.raw_file_position());
            }
        }
    }
    tree.finish()?;
    Ok(counts)
}

/// What extension headers said about the entry that follows them.
#[derive(Debug, Default)]
struct Extra {
    path: Option<Vec<u8>>,
    link: Option<Vec<u8>>,
    size: Option<u64>,
    uid: Option<u64>,
    gid: Option<u64>,
    mtime: Option<u64>,
    capability: Option<Vec<u8>>,
    attributes: Vec<(String, Vec<u8>)>,
}

impl Extra {
    fn read_pax(&mut self, data: &[u8]) -> Result<(), TemplateError> {
        let bad = || TemplateError::refused(b"pax header", "is malformed");
        for (key, value) in pax::records(data).ok_or_else(bad)? {
            match key {
                b"path" => self.path = Some(value.to_vec()),
                b"linkpath" => self.link = Some(value.to_vec()),
                b"size" => self.size = Some(pax::number(value).ok_or_else(bad)?),
                b"uid" => self.uid = Some(pax::number(value).ok_or_else(bad)?),
                b"gid" => self.gid = Some(pax::number(value).ok_or_else(bad)?),
                b"mtime" => self.mtime = Some(pax::seconds(value).ok_or_else(bad)?),
                b"SCHILY.xattr.security.capability" => {
                    self.capability = Some(capability::shifted(value, ID_SHIFT).ok_or_else(bad)?);
                }
                _ if key.starts_with(b"GNU.sparse.") => {
                    return Err(TemplateError::refused(
                        b"pax header",
                        "describes a sparse file; pack without --sparse",
                    ));
                }
                // Of attributes, only the file's own are kept. Above all not `trusted.overlay.*` and `user.overlay.*`,
                // which would steer the overlay mount, and `security.*`, which would steer the host's security module.
                _ => {
                    if let Some(name) = own_attribute(key) {
                        self.attributes.retain(|(known, _)| known != name);
                        self.attributes.push((name.to_owned(), value.to_vec()));
                    }
                }
            }
        }
        Ok(())
    }

    /// Joins header and extensions; `None` for a device node.
    fn complete(self, header: &Header) -> Result<Option<Member>, TemplateError> {
        let path = self.path.unwrap_or_else(|| header.path_bytes().into_owned());
        let refuse = |reason: &str| TemplateError::refused(&path, reason);
        let bad_number = |_| refuse("has a malformed header");
        let size = header.entry_size().map_err(bad_number)?;
        // Readers that disagree about a size see different archives in the same bytes.
        if self.size.is_some_and(|pax| pax != size) {
            return Err(refuse("has two different sizes"));
        }
        let link =
            self.link.or_else(|| header.link_name_bytes().map(|name| name.into_owned())).unwrap_or_default();
        let kind = match header.entry_type() {
            EntryType::Regular | EntryType::Continuous if path.ends_with(b"/") => Kind::Directory,
            EntryType::Regular | EntryType::Continuous => Kind::File { size },
            EntryType::Directory => Kind::Directory,
            EntryType::Symlink => Kind::Symlink { target: link },
            EntryType::Link => Kind::HardLink { target: link },
            EntryType::Fifo => Kind::Fifo,
            EntryType::Char | EntryType::Block => return Ok(None),
            other => return Err(refuse(&format!("has the unknown type 0x{:02x}", other.as_byte()))),
        };
        let id = |from_pax: Option<u64>, from_header: std::io::Result<u64>| {
            let id = from_pax.map_or(from_header, Ok).map_err(bad_number)?;
            u32::try_from(id).ok().filter(|id| *id < ID_COUNT).ok_or_else(|| {
                refuse(&format!("belongs to id {id}; ids up to {} are accepted", ID_COUNT - 1))
            })
        };
        Ok(Some(Member {
            kind,
            uid: id(self.uid, header.uid())?,
            gid: id(self.gid, header.gid())?,
            mode: header.mode().map_err(bad_number)? & 0o7777,
            mtime: self.mtime.map_or_else(|| header.mtime(), Ok).map_err(bad_number)?.min(MAX_MTIME),
            capability: self.capability,
            attributes: self.attributes,
            path,
        }))
    }
}

/// The name in a pax key of an attribute that is the file's own business.
fn own_attribute(key: &[u8]) -> Option<&str> {
    let name = std::str::from_utf8(key.strip_prefix(b"SCHILY.xattr.")?).ok()?;
    is_own_attribute(name).then_some(name)
}

fn read_name<R: Read>(entry: &mut Entry<'_, R>) -> Result<Vec<u8>, TemplateError> {
    let mut name = read_bounded(entry, MAX_NAME + 1)?;
    if name.last() == Some(&0) {
        name.pop();
    }
    Ok(name)
}

fn read_bounded<R: Read>(entry: &mut Entry<'_, R>, limit: u64) -> Result<Vec<u8>, TemplateError> {
    if entry.size() > limit {
        return Err(TemplateError::refused(
            &entry.path_bytes(),
            format!("is a header of more than {limit} bytes"),
        ));
    }
    let mut data = Vec::new();
    entry.read_to_end(&mut data).map_err(TemplateError::BadArchive)?;
    Ok(data)
}
