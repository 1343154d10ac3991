//! What a model is told about the tools as a whole (`spec/mcp.md` §A.2). Some clients keep only the first 512 characters,
//! so the first paragraph stands alone; the rest is built from what is listed and never names a tool that is not.

use crate::tools::listed;

const FIRST: &str = "Superserve runs commands and files in isolated sandboxes (Firecracker microVMs where the platform runs \
    them). Get an id from sandbox_create or sandbox_list and pass it as sandbox_id everywhere; no call depends on an \
    earlier one. sandbox_exec and sandbox_files_* wake a paused sandbox themselves: no sandbox_resume first. sandbox_pause \
    keeps all state cheaply, sandbox_kill is permanent. sandbox_files_read refuses files over 1 MiB: take a slice with \
    sandbox_exec and `head -c`.";

/// Sentences of the second paragraph, each with the tools it names.
const SECOND: &[(&[&str], &str)] = &[
    (
        &["sandbox_template_list"],
        "Call sandbox_template_list before from_template; only `ready` templates can be used.",
    ),
    (
        &["sandbox_template_create", "sandbox_template_list"],
        "After sandbox_template_create poll sandbox_template_list until the template is `ready`.",
    ),
    (
        &["sandbox_create"],
        "Never put credentials into env_vars, files or commands: bind stored secrets by name with `secrets` of sandbox_create; \
         the sandbox only sees a stand-in.",
    ),
    (
        &["sandbox_attach_secret", "secret_list"],
        "secret_list shows the names; sandbox_attach_secret binds one to an existing sandbox.",
    ),
    (
        &["sandbox_update"],
        "Network: allow_out adds destinations, deny_out blocks them, both at creation or with sandbox_update. A strict \
         allowlist is allow_out plus deny_out [\"0.0.0.0/0\"], with the resolvers 1.1.1.1/32 and 8.8.8.8/32 in allow_out when \
         names are resolved.",
    ),
    (&["sandbox_network_log"], "sandbox_network_log shows what was allowed and blocked."),
    (
        &["sandbox_preview_url"],
        "sandbox_preview_url publishes a port of a server in the sandbox; links to private ports are signed and expire.",
    ),
    (
        &["sandbox_computer"],
        "sandbox_computer operates the screen of a desktop template; after a failed input look at a screenshot before \
         repeating it.",
    ),
    (&["sandbox_exec"], "Start servers in the background with sandbox_exec: `nohup CMD >app.log 2>&1 &`."),
    (
        &["sandbox_kill", "sandbox_pause"],
        "When the work is done, pause what is needed later and kill the rest; auto_delete_seconds does it for forgotten ones.",
    ),
];

/// The text.
pub(crate) fn text() -> String {
    let second: Vec<&str> = SECOND
        .iter()
        .filter(|(tools, _)| tools.iter().all(|tool| listed(tool)))
        .map(|(_, sentence)| *sentence)
        .collect();
    format!("{FIRST}\n\n{}", second.join(" "))
}

#[cfg(test)]
mod tests {
    use expect_test::expect_file;

    use super::*;

    #[test]
    fn the_beginning_stands_alone() {
        assert!(FIRST.chars().count() <= 512, "{}", FIRST.chars().count());
        let text = text();
        let head: String = text.chars().take(512).collect();
        for word in [
            "isolated",
            "Firecracker microVM",
            "sandbox_create",
            "sandbox_list",
            "sandbox_id",
            "sandbox_resume",
            "permanent",
            "1 MiB",
            "sandbox_exec",
            "head -c",
        ] {
            assert!(head.contains(word), "{word}");
        }
        assert!(text.contains("secrets"));
        // One sentence a line, so that two new tools do not meet in one.
        expect_file!["../tests/golden/instructions.txt"].assert_eq(&(text.replace(". ", ".\n") + "\n"));
    }

    #[test]
    fn only_listed_tools_are_named() {
        let text = text();
        for name in crate::server::tests::tool_names_in(&text) {
            assert!(listed(&name), "{name} is not listed");
        }
    }
}
