//! What a refusal means to a caller.

use domain::{Action, BuildId, Code, NextStep, Problem};
use store::BuildQuota;

pub(crate) fn no_such_template(name: &str) -> Problem {
    let shown: String = name.chars().take(128).collect();
    let message = format!("template `{shown}` not found");
    Problem::new(Code::NotFound, message, NextStep::Do(Action::ListTemplates))
}

pub(crate) fn no_such_build(template: &str, id: BuildId) -> Problem {
    let next = NextStep::Fix {
        field: "build id".to_owned(),
        accepted: "GET /templates/{id}/builds lists the builds there are".to_owned(),
    };
    Problem::new(Code::NotFound, format!("template `{template}` has no build {id}"), next)
}

/// A curated template, asked to change by a team.
pub(crate) fn not_yours(name: &str) -> Problem {
    let next = NextStep::AskOperator(format!("`superserve template build {name}` on the server changes it"));
    Problem::new(Code::Forbidden, format!("`{name}` is the platform's own"), next)
}

pub(crate) fn imported(name: &str) -> Problem {
    let accepted = "create a template with a build_spec".to_owned();
    let next = NextStep::Fix { field: "template".to_owned(), accepted };
    Problem::new(Code::Conflict, format!("`{name}` was imported; there is nothing to build again"), next)
}

pub(crate) fn in_use(name: &str) -> Problem {
    let message =
        format!("sandboxes were made from template `{name}`, and it cannot be deleted before they are");
    Problem::new(Code::Conflict, message, NextStep::Do(Action::ListSandboxes))
}

pub(crate) fn building(name: &str) -> Problem {
    let message = format!("a build of template `{name}` is under way");
    Problem::new(Code::Conflict, message, NextStep::Do(Action::WaitForBuild))
}

pub(crate) fn too_many_builds(quota: BuildQuota) -> Problem {
    let message = format!("your team has as many builds under way as it may ({})", quota.builds);
    Problem::new(Code::TooManyBuilds, message, NextStep::Do(Action::WaitForBuild))
}

pub(crate) fn too_many_templates(quota: BuildQuota) -> Problem {
    let message = format!("your team has as many templates as it may ({})", quota.templates);
    Problem::new(Code::TooManyTemplates, message, NextStep::Do(Action::DeleteTemplates))
}

pub(crate) fn stopping() -> Problem {
    let next = NextStep::Retry { after: std::time::Duration::from_secs(2) };
    Problem::new(Code::ServiceUnavailable, "the server is stopping", next)
}
