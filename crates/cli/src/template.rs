//! `superserve template …`: templates and their builds over the public API.

use client::{
    BuildLog, BuildSpec, BuildStep, Client, ClientError, CreateTemplate, EnvStep, LogSource, TemplateBuild,
    UserStep,
};

use crate::args::{BuildArgs, TemplateCommand};
use crate::dockerfile;
use crate::error::CliError;
use crate::out::{self, Stop};
use crate::table;

/// A file that is larger is no Dockerfile.
const MAX_DOCKERFILE: u64 = 1024 * 1024;
/// Breaks of the connection to a log that are mended by reading it again.
const REOPENS: u32 = 5;

/// Runs the command and says what the process should exit with.
///
/// # Errors
/// [`CliError`], ready to be reported.
pub async fn run_template(command: TemplateCommand, client: &Client, json: bool) -> Result<u8, CliError> {
    let done = match command {
        TemplateCommand::List => list(client, json).await.map(|()| 0),
        TemplateCommand::Build(args) => build(*args, client, json).await,
        TemplateCommand::Logs { name, build } => logs(client, &name, build, json).await,
        TemplateCommand::Cancel { name } => cancel(client, &name).await,
        TemplateCommand::Delete { names } => delete(client, &names).await,
    };
    out::settle(done)
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
            template.isolation.clone().unwrap_or_else(|| "-".to_owned()),
            template.id.clone(),
        ]
    });
    let rows = rows.collect::<Vec<_>>();
    out::line(&table::render(&["NAME", "STATUS", "VCPU", "MEMORY", "DISK", "ISOLATION", "ID"], &rows))
}

async fn build(args: BuildArgs, client: &Client, json: bool) -> Result<u8, Stop> {
    let detach = args.detach;
    let (template, build) = match spec(&args)? {
        Some(build_spec) => {
            let body = CreateTemplate {
                name: args.name,
                vcpu: args.vcpu,
                memory_mib: args.memory_mib,
                disk_mib: args.disk_mib,
                isolation: args.isolation,
                build_spec,
            };
            let made =
                client.create_template(&body).await.map_err(|error| of_template(&error, &body.name))?;
            (made.template.id, made.build_id)
        }
        None if args.isolation.is_some() => {
            return Err(CliError::new("a template keeps the isolation that it was made with")
                .hint("make another with --from or --file")
                .into());
        }
        None => {
            let build = client.rebuild_template(&args.name).await;
            let build = build.map_err(|error| of_template(&error, &args.name))?;
            (build.template_id, build.id)
        }
    };
    if detach {
        if json {
            out::json(&serde_json::json!({"template_id": template, "build_id": build}))?;
        } else {
            out::line(&build)?;
        }
        return Ok(0);
    }
    follow(client, &template, &build, json).await
}

/// What the arguments describe; `None` when they only name a template.
fn spec(args: &BuildArgs) -> Result<Option<BuildSpec>, CliError> {
    let mut spec = match (&args.from, &args.file) {
        (Some(from), _) => {
            let step = BuildStep::default;
            let mut steps = Vec::new();
            for (key, value) in &args.env {
                let env = EnvStep { key: key.clone(), value: value.clone() };
                steps.push(BuildStep { env: Some(env), ..step() });
            }
            steps.extend(args.run.iter().map(|run| BuildStep { run: Some(run.clone()), ..step() }));
            if let Some(name) = &args.user {
                let user = UserStep { name: name.clone(), sudo: None };
                steps.push(BuildStep { user: Some(user), ..step() });
            }
            steps.extend(args.workdir.iter().map(|dir| BuildStep { workdir: Some(dir.clone()), ..step() }));
            BuildSpec { from: from.clone(), steps: Some(steps), ..BuildSpec::default() }
        }
        (None, Some(file)) => {
            let unreadable =
                |error: std::io::Error| CliError::new(format!("cannot read {}: {error}", file.display()));
            if std::fs::metadata(file).map_err(unreadable)?.len() > MAX_DOCKERFILE {
                return Err(CliError::new(format!("{} is too large for a Dockerfile", file.display())));
            }
            let text = std::fs::read_to_string(file).map_err(unreadable)?;
            let beside = file.parent().filter(|dir| !dir.as_os_str().is_empty());
            let context = args.context.as_deref().or(beside).unwrap_or(std::path::Path::new("."));
            let given = args.build_arg.iter().cloned().collect();
            let read = dockerfile::read(&text, context, &given, args.target.as_deref())?;
            read.notes.iter().for_each(|note| out::note(note));
            read.spec
        }
        (None, None) => {
            let others =
                args.start_cmd.is_some() || args.ready_cmd.is_some() || args.image_cmd || args.vcpu.is_some();
            if others || args.memory_mib.is_some() || args.disk_mib.is_some() {
                return Err(CliError::new("an existing template is built again as it is")
                    .hint("name an image with --from, or a Dockerfile with --file"));
            }
            return Ok(None);
        }
    };
    spec.start_cmd = args.start_cmd.clone().or(spec.start_cmd);
    spec.image_cmd = args.image_cmd.then_some(true);
    spec.ready_cmd = args.ready_cmd.clone().or(spec.ready_cmd);
    Ok(Some(spec))
}

async fn logs(client: &Client, name: &str, build: Option<String>, json: bool) -> Result<u8, Stop> {
    let build = match build {
        Some(build) => build,
        None => newest(client, name).await?.id,
    };
    follow(client, name, &build, json).await
}

async fn newest(client: &Client, name: &str) -> Result<TemplateBuild, CliError> {
    let builds = client.list_builds(name, 1).await.map_err(|error| of_template(&error, name))?;
    builds.into_iter().next().ok_or_else(|| CliError::new(format!("template {name} was never built")))
}

/// Shows a build to its end: what commands print on standard output and error, the platform's words on standard error.
async fn follow(client: &Client, template: &str, build: &str, json: bool) -> Result<u8, Stop> {
    let mut shown = 0;
    let mut reopens = 0;
    'open: loop {
        let log = client.build_log(template, build).await;
        let mut log: BuildLog = log.map_err(|error| of_template(&error, template))?;
        let mut seen = 0;
        loop {
            let event = match log.next().await {
                Ok(Some(event)) => event,
                Ok(None) => break 'open,
                Err(ClientError::Interrupted { .. }) if reopens < REOPENS => {
                    reopens += 1;
                    continue 'open;
                }
                Err(error) => return Err(CliError::from(error).into()),
            };
            seen += 1;
            if seen <= shown {
                continue;
            }
            shown = seen;
            if json {
                out::line(&serde_json::to_string(&event).unwrap_or_default())?;
                continue;
            }
            match event.stream {
                LogSource::Stdout => out::raw(out::printable_lines(&event.text).as_bytes())?,
                LogSource::Stderr => out::raw_error(out::printable_lines(&event.text).as_bytes()),
                LogSource::System => out::note(&out::printable(event.text.trim_end())),
            }
        }
    }
    let done = client.get_build(template, build).await.map_err(|error| of_template(&error, template))?;
    if done.status == "ready" {
        return Ok(0);
    }
    // The log has said why.
    Ok(1)
}

async fn cancel(client: &Client, name: &str) -> Result<u8, Stop> {
    let build = newest(client, name).await?;
    client.cancel_build(name, &build.id).await.map_err(|error| of_template(&error, name))?;
    Ok(0)
}

async fn delete(client: &Client, names: &[String]) -> Result<u8, Stop> {
    let mut code = 0;
    for name in names {
        if let Err(error) = client.delete_template(name).await {
            of_template(&error, name).report(false);
            code = 1;
        }
    }
    Ok(code)
}

/// A failed call about a template.
fn of_template(error: &ClientError, name: &str) -> CliError {
    let shown = CliError::from(error.clone());
    match error.api().map(|api| api.status) {
        Some(404) => CliError { message: format!("template {name} not found"), ..shown }
            .hint("superserve template list"),
        _ => shown,
    }
}
