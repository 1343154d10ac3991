//! `superserve template list`.

use client::Client;

use crate::args::TemplateCommand;
use crate::error::CliError;
use crate::out::{self, Stop};
use crate::table;

/// Runs the command and says what the process should exit with.
///
/// # Errors
/// [`CliError`], ready to be reported.
pub async fn run_template(command: TemplateCommand, client: &Client, json: bool) -> Result<u8, CliError> {
    let TemplateCommand::List = command;
    out::settle(list(client, json).await.map(|()| 0))
}

async fn list(client: &Client, json: bool) -> Result<(), Stop> {
    let page = client.list_templates().await.map_err(CliError::from)?;
    if json {
        return out::json(&page.items);
    }
    let rows = page.items.iter().map(|template| {
        vec![
            template.name.clone(),
            template.status.clone(),
            template.vcpu.to_string(),
            format!("{} MiB", template.memory_mib),
            format!("{} MiB", template.disk_mib),
            template.id.clone(),
        ]
    });
    let rows = rows.collect::<Vec<_>>();
    out::line(&table::render(&["NAME", "STATUS", "VCPU", "MEMORY", "DISK", "ID"], &rows))
}
