//! The words of the command line. Help texts are golden-tested.

use clap::{Args, Subcommand};

/// Work with sandboxes.
#[derive(Debug, Subcommand)]
pub enum SandboxCommand {
    /// Create a sandbox and print its id
    Create(CreateArgs),
    /// Make sandboxes that continue from what a sandbox is now, and print their ids
    Fork(ForkArgs),
    /// List sandboxes
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Show one sandbox
    Info {
        /// Sandbox id
        id: String,
    },
    /// Run a command; exits with the command's code, or 125 when it could not be run
    Exec(ExecArgs),
    /// Open a shell in a sandbox, at this terminal; `~.` at the start of a line leaves it running
    Shell(ShellArgs),
    /// List the sessions of a sandbox, come back to one, or end one
    Sessions {
        /// Sandbox id; a paused sandbox is resumed
        id: String,
        #[command(subcommand)]
        action: Option<SessionAction>,
    },
    /// Copy files or directories between here and a sandbox
    Cp(CopyArgs),
    /// Publish a port of a sandbox and print the address for a browser; a signed link when it is private
    Preview(PreviewArgs),
    /// List published ports with their traffic
    Previews {
        /// Only those of this sandbox
        id: Option<String>,
        /// Look again every two seconds, until Ctrl-C
        #[arg(long)]
        watch: bool,
    },
    /// Write a picture of a desktop to a file, and print its name
    Screenshot(ScreenshotArgs),
    /// Record a desktop to a video, until Ctrl-C or the time is up
    Record(RecordArgs),
    /// Print the address of the live view of a desktop; a link good for a minute when it is private
    View {
        /// Sandbox id; a paused sandbox is resumed
        id: String,
        /// A viewer that sends no input
        #[arg(long)]
        view_only: bool,
    },
    /// Show what a sandbox did on the network, oldest first; never resumes it
    Network(NetworkArgs),
    /// Show what a sandbox may reach, or change it for new connections
    Rules(RulesArgs),
    /// Pause sandboxes; they keep their state and use no compute
    Pause {
        /// Sandbox ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Resume paused sandboxes
    Resume {
        /// Sandbox ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
    /// Delete sandboxes for ever
    #[command(visible_alias = "rm")]
    Kill {
        /// Sandbox ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
    },
}

/// Arguments of `sandbox create`.
#[derive(Debug, Clone, Default, Args)]
pub struct CreateArgs {
    /// Name, 1 to 64 bytes; made up when left out
    #[arg(long)]
    pub name: Option<String>,
    /// Template name or id
    #[arg(long, value_name = "NAME", help = "Template name or id [default: superserve/base]")]
    pub template: Option<String>,
    /// Begin with a saved snapshot instead of a template
    #[arg(long, value_name = "SNAPSHOT", conflicts_with = "template")]
    pub from_snapshot: Option<String>,
    /// Pause it after this many seconds of running
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(1..=604_800))]
    pub timeout: Option<i64>,
    /// Delete it after this many seconds of being paused; 0 deletes on pause
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..=2_592_000))]
    pub auto_delete: Option<i64>,
    /// Tag it; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub metadata: Vec<(String, String)>,
    /// Set an environment variable, not for credentials; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// Give it a stored secret under an environment variable; may be repeated
    #[arg(long, value_name = "VARIABLE=SECRET", value_parser = pair)]
    pub secret: Vec<(String, String)>,
    /// Always permit connections to this IPv4 address, network or domain; may be repeated
    #[arg(long, value_name = "TARGET")]
    pub allow_out: Vec<String>,
    /// Refuse connections to this IPv4 address or network; may be repeated
    #[arg(long, value_name = "TARGET")]
    pub deny_out: Vec<String>,
    /// Who may open ports that are published later [default: public]
    #[arg(long, value_name = "MODE", value_parser = ["public", "private"])]
    pub preview_access: Option<String>,
    /// Permit nothing but --allow-out, and resolve no other name
    #[arg(long)]
    pub strict: bool,
    /// What it runs on: container, gvisor, qemu or firecracker; what the template or the server says, by default
    #[arg(long, value_name = "ENGINE")]
    pub isolation: Option<String>,
}

/// Arguments of `sandbox fork`.
#[derive(Debug, Clone, Args)]
pub struct ForkArgs {
    /// Sandbox id, active or paused; it is not resumed
    pub id: String,
    /// How many forks
    #[arg(short = 'n', long = "count", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=100))]
    pub count: u32,
    /// Name of the forks, with a number behind it when there are several [default: fork]
    #[arg(long)]
    pub name: Option<String>,
    /// Tag them; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub metadata: Vec<(String, String)>,
    /// Delete each after this many seconds of being paused; 0 deletes on pause
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(0..=2_592_000))]
    pub auto_delete: Option<i64>,
    /// Keep the snapshot they are made from, perhaps with a name; it is deleted otherwise
    #[arg(long, value_name = "NAME", num_args = 0..=1, require_equals = true)]
    pub keep: Option<Option<String>>,
}

/// Save sandboxes as they are, to make others from them.
#[derive(Debug, Subcommand)]
pub enum SnapshotCommand {
    /// Save a sandbox, active or paused, and print the snapshot's id; an active one stands still meanwhile
    Create {
        /// Sandbox id
        id: String,
        /// Name, 1 to 64 bytes
        #[arg(long)]
        name: Option<String>,
    },
    /// List the snapshots of a sandbox, which may be deleted, newest first
    #[command(visible_alias = "ls")]
    List {
        /// Sandbox id
        id: String,
        /// Show at most this many
        #[arg(long, value_parser = clap::value_parser!(u32).range(1..=200))]
        limit: Option<u32>,
    },
    /// Show one snapshot
    Get {
        /// Snapshot id
        snapshot: String,
    },
    /// Give a snapshot another name
    Rename {
        /// Snapshot id
        snapshot: String,
        /// Name, 1 to 64 bytes
        name: String,
    },
    /// Delete snapshots for ever; sandboxes made from them stay
    #[command(visible_alias = "rm")]
    Delete {
        /// Snapshot ids
        #[arg(required = true, value_name = "SNAPSHOT")]
        snapshots: Vec<String>,
    },
}

/// Arguments of `sandbox network`.
#[derive(Debug, Clone, Default, Args)]
pub struct NetworkArgs {
    /// Sandbox id
    pub id: String,
    /// Go on showing what happens
    #[arg(long, short)]
    pub follow: bool,
    /// Look-ups of names and refused packets too
    #[arg(long, short)]
    pub all: bool,
    /// Only what was allowed, blocked, or failed
    #[arg(long, value_parser = ["allowed", "blocked", "failed"])]
    pub verdict: Option<String>,
    /// Only from this time on (RFC 3339)
    #[arg(long, value_name = "TIME")]
    pub since: Option<String>,
    /// Show at most this many of the newest rows
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub limit: u32,
}

/// Arguments of `sandbox rules`.
#[derive(Debug, Clone, Default, Args)]
pub struct RulesArgs {
    /// Sandbox id; it must run when rules are changed
    pub id: String,
    /// Replace what is always permitted: IPv4 addresses, networks or domains; may be repeated
    #[arg(long, value_name = "TARGET")]
    pub allow_out: Vec<String>,
    /// Replace what is refused: IPv4 addresses or networks; may be repeated
    #[arg(long, value_name = "TARGET")]
    pub deny_out: Vec<String>,
    /// Permit nothing but what is always permitted, and resolve no other name
    #[arg(long, value_name = "on|off", value_parser = on_off)]
    pub strict: Option<bool>,
    /// Remove all rules first
    #[arg(long)]
    pub clear: bool,
}

/// Arguments of `sandbox preview`.
#[derive(Debug, Clone, Args)]
pub struct PreviewArgs {
    /// Sandbox id; it is not resumed
    pub id: String,
    /// Port that a server in the sandbox listens on, 1024 to 65535
    #[arg(value_parser = clap::value_parser!(u16).range(1024..))]
    pub port: u16,
    /// Who may open it; changing it ends all links. Left out: as it is, or the sandbox's default
    #[arg(long, value_name = "MODE", value_parser = ["public", "private"])]
    pub access: Option<String>,
    /// Seconds the signed link of a private port is good
    #[arg(long, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(i64).range(1..=604_800))]
    pub expires_in: i64,
    #[command(flatten)]
    pub action: PreviewAction,
}

/// What to do with a port besides publishing it.
#[derive(Debug, Clone, Args)]
#[group(multiple = false)]
pub struct PreviewAction {
    /// End all links of a private port and print one without an end
    #[arg(long)]
    pub rotate: bool,
    /// Take the port back; all its links end
    #[arg(long, conflicts_with = "access")]
    pub unpublish: bool,
    /// Show its latest requests instead
    #[arg(long, conflicts_with = "access")]
    pub log: bool,
}

/// Arguments of `sandbox screenshot`.
#[derive(Debug, Clone, Args)]
pub struct ScreenshotArgs {
    /// Sandbox id; a paused sandbox is resumed
    pub id: String,
    /// File to write, or `-` for standard output [default: named after sandbox and time]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<std::path::PathBuf>,
    /// Kind of picture [default: what the file is named after, or png]
    #[arg(long, value_parser = ["png", "jpeg"])]
    pub format: Option<String>,
}

/// Arguments of `sandbox record`.
#[derive(Debug, Clone, Args)]
pub struct RecordArgs {
    /// Sandbox id; a paused sandbox is resumed at the start
    pub id: String,
    /// Video to write, AVI with JPEG frames
    #[arg(short, long, value_name = "FILE")]
    pub output: std::path::PathBuf,
    /// Longest recording
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u32).range(1..=3600))]
    pub seconds: u32,
    /// Frames per second
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=15))]
    pub fps: u32,
}

/// Arguments of `sandbox list`.
#[derive(Debug, Clone, Default, Args)]
pub struct ListArgs {
    /// Only sandboxes with this tag; may be repeated, all must match
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub metadata: Vec<(String, String)>,
    /// Only sandboxes in this state; several separated by commas
    #[arg(long)]
    pub status: Option<String>,
    /// Only sandboxes with this text in their name
    #[arg(long, value_name = "TEXT")]
    pub name: Option<String>,
    /// Show at most this many
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=200))]
    pub limit: Option<u32>,
}

/// Arguments of `sandbox exec`.
#[derive(Debug, Clone, Args)]
pub struct ExecArgs {
    /// Sandbox id; a paused sandbox is resumed
    pub id: String,
    /// Give the command our standard input
    #[arg(short, long)]
    pub interactive: bool,
    /// Give the command a terminal, which takes its size, keys and Ctrl-C from this one
    #[arg(short, long)]
    pub tty: bool,
    /// Kill the command after this many seconds; it then exits with 124
    #[arg(long, value_name = "SECONDS", value_parser = clap::value_parser!(i64).range(1..=86_400))]
    pub timeout: Option<i64>,
    /// Working directory, absolute
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// Set an environment variable for this command; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
    /// A shell command as one argument, or a program and its arguments after `--`
    #[arg(required = true, trailing_var_arg = true, value_name = "COMMAND")]
    pub command: Vec<String>,
}

/// Arguments of `sandbox shell`.
#[derive(Debug, Clone, Args)]
pub struct ShellArgs {
    /// Sandbox id; a paused sandbox is resumed
    pub id: String,
    /// Working directory, absolute
    #[arg(long, value_name = "DIR")]
    pub cwd: Option<String>,
    /// Set an environment variable for this shell; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    pub env: Vec<(String, String)>,
}

/// What to do with the sessions of a sandbox, other than listing them.
#[derive(Debug, Clone, Subcommand)]
pub enum SessionAction {
    /// Come back to a session: what it has written lately, then its output and input
    Attach {
        /// Session id
        session: String,
    },
    /// End sessions and everything they started
    Kill {
        /// Session ids
        #[arg(required = true, value_name = "SESSION")]
        sessions: Vec<String>,
    },
}

/// Arguments of `sandbox cp`.
#[derive(Debug, Clone, Args)]
pub struct CopyArgs {
    /// A local path, `ID:/path` in a sandbox, or `-` for standard input
    pub from: String,
    /// A local path, `ID:/path` in a sandbox, or `-` for standard output
    pub to: String,
}

/// Store credentials that sandboxes can use and never read.
#[derive(Debug, Subcommand)]
pub enum SecretCommand {
    /// Store a credential; its value comes from standard input or is typed at a prompt
    Create(NewSecretArgs),
    /// List secrets; values cannot be read back
    #[command(visible_alias = "ls")]
    List,
    /// Show one secret
    Info {
        /// Name
        name: String,
    },
    /// Replace a value, from standard input or a prompt; sandboxes use the new one from the next request on
    Rotate {
        /// Name
        name: String,
    },
    /// Delete a secret; it ends in all sandboxes at once
    #[command(visible_alias = "rm")]
    Delete {
        /// Name
        name: String,
    },
    /// Show where a secret is bound
    Sandboxes {
        /// Name
        name: String,
    },
    /// Show what a secret was used for, newest first
    Audit {
        /// Name
        name: String,
        /// Only what failed or was refused
        #[arg(long)]
        errors: bool,
        /// Show at most this many
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
        limit: u32,
    },
    /// List the providers that are known by name
    Providers,
    /// Give a sandbox a secret under an environment variable
    Attach {
        /// Sandbox id
        id: String,
        /// Environment variable
        #[arg(value_name = "VARIABLE")]
        env_key: String,
        /// Secret
        #[arg(value_name = "SECRET")]
        name: String,
    },
    /// Take the secret of an environment variable from a sandbox
    Detach {
        /// Sandbox id
        id: String,
        /// Environment variable
        #[arg(value_name = "VARIABLE")]
        env_key: String,
    },
}

/// Arguments of `secret create`.
#[derive(Debug, Clone, Default, Args)]
pub struct NewSecretArgs {
    /// Name: letters, digits, `_` and `-`
    pub name: String,
    /// A known provider, which says where and how the value is sent
    #[arg(long, conflicts_with_all = ["auth", "auth_file", "host"])]
    pub provider: Option<String>,
    /// How the value is sent
    #[arg(long, value_parser = ["bearer", "basic", "api-key", "custom"], required_unless_present_any = ["provider", "auth_file"], requires = "host")]
    pub auth: Option<String>,
    /// api-key: the header
    #[arg(long, value_name = "NAME", requires = "auth")]
    pub header: Option<String>,
    /// api-key: what stands before the value in it
    #[arg(long, requires = "auth")]
    pub prefix: Option<String>,
    /// basic: the user name
    #[arg(long, value_name = "NAME", requires = "auth")]
    pub username: Option<String>,
    /// custom: a header and its template with `{{ value }}`; may be repeated
    #[arg(long, value_name = "HEADER=TEMPLATE", value_parser = pair, requires = "auth")]
    pub template: Vec<(String, String)>,
    /// A JSON file with the `auth` object of the API, for other rules per host
    #[arg(long, value_name = "FILE", conflicts_with = "auth", requires = "host")]
    pub auth_file: Option<std::path::PathBuf>,
    /// A host the value may be sent to, or `*.domain`; may be repeated
    #[arg(long, value_name = "HOST")]
    pub host: Vec<String>,
    /// Keep the value out of textual bodies of answers that repeat it, as it is kept out of headers
    #[arg(long)]
    pub scrub_bodies: bool,
    /// Put the value into the query of URLs, too, for services that want it there
    #[arg(long)]
    pub in_query: bool,
}

/// Work with templates.
#[derive(Debug, Subcommand)]
pub enum TemplateCommand {
    /// List templates
    #[command(visible_alias = "ls")]
    List,
    /// Build a template from an image and steps, or from a Dockerfile, or build an existing one again
    Build(Box<BuildArgs>),
    /// Show what a build says, from its beginning to its end
    Logs {
        /// Template name or id
        name: String,
        /// Build id; the newest one by default
        build: Option<String>,
    },
    /// Stop the build of a template that is under way
    Cancel {
        /// Template name or id
        name: String,
    },
    /// Delete templates for ever; not while sandboxes made from them exist
    #[command(visible_alias = "rm")]
    Delete {
        /// Template names or ids
        #[arg(required = true, value_name = "NAME")]
        names: Vec<String>,
    },
}

/// Arguments of `template build`.
#[derive(Debug, Clone, Default, Args)]
pub struct BuildArgs {
    /// Name of the template; without --from and --file an existing one is built again
    pub name: String,
    /// Image to begin with, or template:NAME to begin with another template
    #[arg(long, value_name = "IMAGE", conflicts_with = "file")]
    pub from: Option<String>,
    /// Dockerfile; CMD and ENTRYPOINT become the command that runs in every sandbox, HEALTHCHECK the one that says it serves
    #[arg(short, long, value_name = "DOCKERFILE")]
    pub file: Option<std::path::PathBuf>,
    /// Where COPY finds its files; the directory of the Dockerfile by default
    #[arg(long, value_name = "DIR", requires = "file")]
    pub context: Option<std::path::PathBuf>,
    /// Stage of the Dockerfile to build; the last one by default
    #[arg(long, value_name = "NAME", requires = "file")]
    pub target: Option<String>,
    /// Value of an ARG of the Dockerfile; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair, requires = "file")]
    pub build_arg: Vec<(String, String)>,
    /// Shell command to run; may be repeated, in order
    #[arg(long, value_name = "COMMAND", requires = "from")]
    pub run: Vec<String>,
    /// Set an environment variable for the commands and the sandboxes; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair, requires = "from")]
    pub env: Vec<(String, String)>,
    /// Working directory of the sandboxes
    #[arg(long, value_name = "DIR", requires = "from")]
    pub workdir: Option<String>,
    /// User of the sandboxes' commands, made if there is none
    #[arg(long, value_name = "NAME", requires = "from")]
    pub user: Option<String>,
    /// Command that runs in every sandbox
    #[arg(long, value_name = "COMMAND")]
    pub start_cmd: Option<String>,
    /// Without a start command, run the image's own ENTRYPOINT and CMD in every sandbox
    #[arg(long, conflicts_with = "start_cmd")]
    pub image_cmd: bool,
    /// Command that succeeds once the start command serves
    #[arg(long, value_name = "COMMAND")]
    pub ready_cmd: Option<String>,
    /// Processors
    #[arg(long, value_name = "N")]
    pub vcpu: Option<i64>,
    /// Memory, MiB
    #[arg(long, value_name = "MIB")]
    pub memory_mib: Option<i64>,
    /// Writable disk, MiB
    #[arg(long, value_name = "MIB")]
    pub disk_mib: Option<i64>,
    /// What its sandboxes run on: container, gvisor, qemu or firecracker; the server's default, by default
    #[arg(long, value_name = "ENGINE")]
    pub isolation: Option<String>,
    /// Return at once; the build goes on
    #[arg(short, long)]
    pub detach: bool,
}

/// Measure the platform as a user meets it: create, exec, pause, resume, files, previews, desktop, MCP and memory
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    /// Template of the measured sandboxes
    #[arg(long, value_name = "NAME", help = "Template of the measured sandboxes [default: superserve/base]")]
    pub template: Option<String>,
    /// Sandboxes created one after the other
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub creates: u32,
    /// Sandboxes created at once; 0 leaves it out
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(0..=200))]
    pub burst: u32,
    /// Commands measured over one kept-alive connection, and previews over one each
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub execs: u32,
    /// Pauses and resumes measured
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pauses: u32,
    /// MiB moved for the throughput of files, each way, and of previews
    #[arg(long, default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub file_mib: u32,
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("on or off is expected".to_owned()),
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("KEY=VALUE is expected".to_owned()),
    }
}

#[cfg(test)]
mod tests;
