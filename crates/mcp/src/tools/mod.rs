//! The tools, one file each, in the fixed order of `spec/mcp.md` §A.1. Adding one is a file here, its `mod`, and its line in
//! [`ALL`]; instructions and texts of others speak of it from then on, and `UPDATE_EXPECT=1` renews the golden list.
//!
//! A tool is a constant: name, words for the model, hints, parameters, and the function that runs it over `client`.

mod sandbox_attach_secret;
mod sandbox_computer;
mod sandbox_create;
mod sandbox_detach_secret;
mod sandbox_exec;
mod sandbox_files_download_dir;
mod sandbox_files_list;
mod sandbox_files_read;
mod sandbox_files_write;
mod sandbox_info;
mod sandbox_kill;
mod sandbox_list;
mod sandbox_network_log;
mod sandbox_pause;
mod sandbox_preview_url;
mod sandbox_resume;
mod sandbox_template_create;
mod sandbox_template_list;
mod sandbox_update;
mod secret_list;

use std::sync::Arc;

use client::Client;
use futures_util::future::BoxFuture;
use rmcp::model::{Tool as Listing, ToolAnnotations};
use tokio_util::task::TaskTracker;

use crate::args::Args;
use crate::params::{self, Param};
use crate::progress::Progress;
use crate::text::{Failure, Outcome};
pub(crate) use sandbox_computer::Screens;
#[cfg(test)]
pub(crate) use sandbox_computer::png;

/// What is listed, in the order of all 20, which is defined here and nowhere else and never changes, so prompt caches hold.
pub(crate) const ALL: &[&Tool] = &[
    &sandbox_create::TOOL,
    // Templates.
    &sandbox_template_list::TOOL,
    &sandbox_template_create::TOOL,
    // Sandboxes.
    &sandbox_list::TOOL,
    &sandbox_info::TOOL,
    &sandbox_pause::TOOL,
    &sandbox_resume::TOOL,
    &sandbox_kill::TOOL,
    &sandbox_update::TOOL,
    // Ports.
    &sandbox_preview_url::TOOL,
    // Network.
    &sandbox_network_log::TOOL,
    // Commands and files.
    &sandbox_exec::TOOL,
    &sandbox_files_read::TOOL,
    &sandbox_files_write::TOOL,
    &sandbox_files_list::TOOL,
    &sandbox_files_download_dir::TOOL,
    // Secrets.
    &secret_list::TOOL,
    &sandbox_attach_secret::TOOL,
    &sandbox_detach_secret::TOOL,
    // Desktop.
    &sandbox_computer::TOOL,
];

/// Whether a tool of this name is listed; texts must not name others.
pub(crate) fn listed(name: &str) -> bool {
    ALL.iter().any(|tool| tool.name == name)
}

/// One tool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Tool {
    /// ASCII, at most 64 characters.
    pub(crate) name: &'static str,
    /// For people.
    pub(crate) title: &'static str,
    /// For the model: when to use it, and what to know.
    pub(crate) description: &'static str,
    /// What clients may assume.
    pub(crate) hints: Hints,
    /// Arguments.
    pub(crate) params: &'static [Param],
    /// Checks that concern several arguments: adds to the problems.
    pub(crate) check: fn(&Args, &mut Vec<String>),
    /// Runs it. Dropping the future cancels the call.
    pub(crate) run: fn(Call) -> BoxFuture<'static, Result<Outcome, Failure>>,
}

/// `spec/mcp.md` §C.0.1. `openWorldHint` is always true: all reach an external platform.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Hints {
    read_only: bool,
    destructive: bool,
    idempotent: bool,
    result_bytes: usize,
}

/// What a result takes that nothing is said of.
const RESULT_BYTES: usize = 256 * 1024;

impl Hints {
    /// Changes nothing.
    pub(crate) const READ: Self = Self::new(true, false, true);
    /// Changes something each time.
    const WRITE: Self = Self::new(false, false, false);
    /// Changes something; again changes nothing more.
    const WRITE_ONCE: Self = Self::new(false, false, true);
    /// Takes something away each time.
    const DESTROY: Self = Self::new(false, true, false);
    /// Takes something away; again takes nothing more.
    const DESTROY_ONCE: Self = Self::new(false, true, true);

    const fn new(read_only: bool, destructive: bool, idempotent: bool) -> Self {
        Self { read_only, destructive, idempotent, result_bytes: RESULT_BYTES }
    }

    /// For a tool with large results: the memory that one takes at its worst, with the platform's own answer and both forms
    /// of ours alive at once. A server for many counts it before the call.
    const fn holding(self, result_bytes: usize) -> Self {
        Self { result_bytes, ..self }
    }
}

/// What the result of a call of the tool of this name may take in memory.
pub(crate) fn result_bytes(tools: &[&Tool], name: &str) -> usize {
    let tool = tools.iter().find(|tool| tool.name == name);
    tool.map_or(RESULT_BYTES, |tool| tool.hints.result_bytes)
}

/// One call of a tool, its arguments checked.
#[derive(Debug)]
pub(crate) struct Call {
    /// Arguments.
    pub(crate) args: Args,
    /// The platform.
    pub(crate) client: Client,
    /// Present when the caller wants to hear of progress.
    pub(crate) progress: Option<Progress>,
    /// Owns work that outlives a cancelled call.
    pub(crate) background: TaskTracker,
    /// What is known of desktops.
    pub(crate) screens: Arc<Screens>,
}

/// No checks beyond the parameters' own.
fn no_check(_: &Args, _: &mut Vec<String>) {}

impl Tool {
    /// The entry of `tools/list`.
    pub(crate) fn listing(&self) -> Listing {
        let annotations = ToolAnnotations::new()
            .read_only(self.hints.read_only)
            .destructive(self.hints.destructive)
            .idempotent(self.hints.idempotent)
            .open_world(true);
        Listing::new(self.name, self.description, params::input_schema(self.params))
            .with_title(self.title)
            .with_annotations(annotations)
    }
}

#[cfg(test)]
mod tests;
