//! `sandbox_template_create` (`spec/mcp.md` §C.17).

use client::{BuildSpec, BuildStep, CreateTemplate};
use serde_json::json;

use super::sandbox_template_list::row;
use super::{Call, Hints, Tool, no_check};
use crate::params::{Kind, Param};
use crate::text::{About, Failure, Outcome, Repeat, Target, explain, line};

pub(super) const TOOL: Tool = Tool {
    name: "sandbox_template_create",
    title: "Build a custom template",
    description: "Build a template from a container image and shell commands, to start sandboxes with everything installed. \
        Returns at once while the build goes on: poll sandbox_template_list until the status is ready, then pass the name as \
        from_template to sandbox_create. If it ends as failed, the list says why.",
    hints: Hints::WRITE,
    params: &[
        Param::required(
            "name",
            Kind::Text { min: 1 },
            "Up to 128 lower-case letters, digits and . _ / -; must not begin with superserve/.",
        ),
        Param::required(
            "from",
            Kind::Text { min: 1 },
            "Base image for linux/amd64 with glibc, such as python:3.11 or ubuntu:24.04; no Alpine, no distroless.",
        ),
        Param::optional("vcpu", AT_LEAST_ONE, "Processors (1 to 4; default 1)."),
        Param::optional("memory_mib", AT_LEAST_ONE, "Memory in MiB (256 to 4096; default 1024)."),
        Param::optional("disk_mib", AT_LEAST_ONE, "Disk in MiB (1024 to 8192; default 4096)."),
        Param::optional(
            "run_steps",
            Kind::List,
            "Shell commands, run in this order as root; the build fails with the first that fails.",
        ),
        Param::optional("start_cmd", Kind::Text { min: 1 }, "Started in every sandbox when it boots."),
        Param::optional(
            "ready_cmd",
            Kind::Text { min: 1 },
            "Must exit 0 once start_cmd serves; tried every 2 s for up to 10 min.",
        ),
    ],
    check: no_check,
    run: |call| Box::pin(run(call)),
};

const AT_LEAST_ONE: Kind = Kind::Integer { min: 1, max: None, default: None };

async fn run(mut call: Call) -> Result<Outcome, Failure> {
    let args = &mut call.args;
    let steps = args.list("run_steps").map(|commands| {
        let steps = commands.into_iter().map(|run| BuildStep { run: Some(run), ..BuildStep::default() });
        steps.collect()
    });
    let body = CreateTemplate {
        name: args.required_text("name"),
        vcpu: args.integer("vcpu"),
        memory_mib: args.integer("memory_mib"),
        disk_mib: args.integer("disk_mib"),
        isolation: None,
        build_spec: BuildSpec {
            from: args.required_text("from"),
            steps,
            start_cmd: args.text("start_cmd"),
            ready_cmd: args.text("ready_cmd"),
            ..BuildSpec::default()
        },
    };
    let about = About {
        target: Target::NewTemplate,
        repeat: Repeat::LookFirst("look for the template with sandbox_template_list"),
    };
    let made = call.client.create_template(&body).await.map_err(|error| explain(&error, about))?;
    let template = &made.template;
    let text = format!(
        "building template {} ({} vCPU / {} MiB, disk {} MiB), status {}: poll sandbox_template_list until its status is \
         ready, then pass from_template: \"{}\" to sandbox_create",
        line(&template.name),
        template.vcpu,
        template.memory_mib,
        template.disk_mib,
        line(&template.status),
        line(&template.name),
    );
    Ok(Outcome::new(text, json!({"template": row(template)})))
}
