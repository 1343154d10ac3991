use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;

use expect_test::{Expect, expect};

use super::*;

const KEY: &str = "ss_live_planted_key";
const CLIENTS: [McpClient; 6] = [
    McpClient::ClaudeCode,
    McpClient::ClaudeDesktop,
    McpClient::Cursor,
    McpClient::VsCode,
    McpClient::Windsurf,
    McpClient::Codex,
];

/// A user with nothing but a home directory.
struct User {
    _dir: tempfile::TempDir,
    home: McpHome,
    target: InstallTarget,
}

impl User {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let root = fs::canonicalize(dir.path()).unwrap();
        let home = McpHome::from_vars(|name| (name == "HOME").then(|| root.clone().into())).unwrap();
        let target = InstallTarget {
            program: "/opt/superserve".into(),
            base_url: Some("http://127.0.0.1:8080".into()),
            key: Some(Secret::new(KEY)),
            key_is_local: true,
        };
        Self { _dir: dir, home, target }
    }

    fn args(client: McpClient) -> InstallArgs {
        InstallArgs {
            client,
            url: None,
            key_file: None,
            key_env: false,
            project: None,
            name: "superserve".into(),
            yes: true,
            dry_run: false,
            undo: false,
        }
    }

    fn path(&self, client: McpClient) -> PathBuf {
        client.place(None, &self.home).unwrap().path
    }

    fn run(&self, args: &InstallArgs) -> Result<u8, CliError> {
        run_install(args, &self.target, &self.home, true)
    }

    fn install(&self, client: McpClient) {
        assert_eq!(self.run(&Self::args(client)), Ok(0));
    }

    fn undo(&self, client: McpClient) {
        assert_eq!(self.run(&InstallArgs { undo: true, ..Self::args(client) }), Ok(0));
    }

    /// What an install makes of a file with this content.
    fn edited(&self, client: McpClient, before: &str) -> String {
        self.put(client, before);
        self.install(client);
        fs::read_to_string(self.path(client)).unwrap()
    }

    fn put(&self, client: McpClient, text: &str) {
        let path = self.path(client);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Every file below the home, with its mode and content.
    fn all(&self) -> Vec<(PathBuf, u32, String)> {
        fn walk(dir: &Path, found: &mut Vec<(PathBuf, u32, String)>) {
            for entry in fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                let metadata = fs::symlink_metadata(&path).unwrap();
                let text = if metadata.is_dir() {
                    String::new()
                } else if metadata.is_symlink() {
                    format!("-> {}", fs::read_link(&path).unwrap().display())
                } else {
                    fs::read_to_string(&path).unwrap()
                };
                if metadata.is_dir() {
                    walk(&path, found);
                }
                found.push((path, metadata.permissions().mode(), text));
            }
        }
        let mut found = Vec::new();
        walk(&self.home.home, &mut found);
        found.retain(|(path, ..)| !path.starts_with(self.home.home.join(".local")));
        found.sort();
        found
    }
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn message(result: Result<u8, CliError>) -> String {
    let error = result.unwrap_err();
    format!("{} / {}", error.message, error.hint.unwrap_or_default())
}

#[test]
fn new_files_of_every_client_and_back() {
    let shapes: [Expect; 6] = [
        expect![[r#"
            {
              "mcpServers": {
                "superserve": {
                  "type": "stdio",
                  "command": "/opt/superserve",
                  "args": ["mcp"],
                  "env": {
                    "SUPERSERVE_API_KEY": "ss_live_planted_key",
                    "SUPERSERVE_BASE_URL": "http://127.0.0.1:8080"
                  }
                }
              }
            }
        "#]],
        expect![[r#"
            {
              "mcpServers": {
                "superserve": {
                  "command": "/opt/superserve",
                  "args": ["mcp"],
                  "env": {
                    "SUPERSERVE_API_KEY": "ss_live_planted_key",
                    "SUPERSERVE_BASE_URL": "http://127.0.0.1:8080"
                  }
                }
              }
            }
        "#]],
        expect![[r#"
            {
              "mcpServers": {
                "superserve": {
                  "command": "/opt/superserve",
                  "args": ["mcp"],
                  "env": {
                    "SUPERSERVE_API_KEY": "ss_live_planted_key",
                    "SUPERSERVE_BASE_URL": "http://127.0.0.1:8080"
                  }
                }
              }
            }
        "#]],
        expect![[r#"
            {
              "inputs": [
                {
                  "type": "promptString",
                  "id": "superserve-key",
                  "description": "Superserve API key",
                  "password": true
                }
              ],
              "servers": {
                "superserve": {
                  "type": "stdio",
                  "command": "/opt/superserve",
                  "args": ["mcp"],
                  "env": {
                    "SUPERSERVE_API_KEY": "${input:superserve-key}",
                    "SUPERSERVE_BASE_URL": "http://127.0.0.1:8080"
                  }
                }
              }
            }
        "#]],
        expect![[r#"
            {
              "mcpServers": {
                "superserve": {
                  "command": "/opt/superserve",
                  "args": ["mcp"],
                  "env": {
                    "SUPERSERVE_API_KEY": "ss_live_planted_key",
                    "SUPERSERVE_BASE_URL": "http://127.0.0.1:8080"
                  }
                }
              }
            }
        "#]],
        expect![[r#"
            [mcp_servers.superserve]
            command = "/opt/superserve"
            args = ["mcp"]
            env_vars = ["SUPERSERVE_API_KEY"]
            env = { SUPERSERVE_BASE_URL = "http://127.0.0.1:8080" }
            tool_timeout_sec = 620
        "#]],
    ];
    for (client, shape) in CLIENTS.into_iter().zip(shapes) {
        let user = User::new();
        let before = user.all();
        user.install(client);
        let path = user.path(client);
        shape.assert_eq(&fs::read_to_string(&path).unwrap());
        assert_eq!(mode(&path), 0o600, "{client:?}");
        // Once more changes nothing.
        let installed = user.all();
        user.install(client);
        assert_eq!(user.all(), installed, "{client:?}");
        user.undo(client);
        assert_eq!(user.all(), before, "{client:?}: files and directories are gone");
        let again = message(user.run(&InstallArgs { undo: true, ..User::args(client) }));
        assert!(again.contains("nothing to undo"), "{again}");
    }
}

#[test]
fn servers_over_http() {
    let shapes: [(McpClient, Expect); 5] = [
        (
            McpClient::ClaudeCode,
            expect![[r#"
                {
                  "mcpServers": {
                    "superserve": {
                      "type": "http",
                      "url": "https://mcp.example.com/mcp",
                      "headers": {
                        "Authorization": "Bearer ss_live_planted_key"
                      }
                    }
                  }
                }
            "#]],
        ),
        (
            McpClient::Cursor,
            expect![[r#"
                {
                  "mcpServers": {
                    "superserve": {
                      "url": "https://mcp.example.com/mcp",
                      "headers": {
                        "Authorization": "Bearer ss_live_planted_key"
                      }
                    }
                  }
                }
            "#]],
        ),
        (
            McpClient::VsCode,
            expect![[r#"
                {
                  "inputs": [
                    {
                      "type": "promptString",
                      "id": "superserve-key",
                      "description": "Superserve API key",
                      "password": true
                    }
                  ],
                  "servers": {
                    "superserve": {
                      "type": "http",
                      "url": "https://mcp.example.com/mcp",
                      "headers": {
                        "Authorization": "Bearer ${input:superserve-key}"
                      }
                    }
                  }
                }
            "#]],
        ),
        (
            McpClient::Windsurf,
            expect![[r#"
                {
                  "mcpServers": {
                    "superserve": {
                      "serverUrl": "https://mcp.example.com/mcp",
                      "headers": {
                        "Authorization": "Bearer ss_live_planted_key"
                      }
                    }
                  }
                }
            "#]],
        ),
        (
            McpClient::Codex,
            expect![[r#"
                [mcp_servers.superserve]
                url = "https://mcp.example.com/mcp"
                bearer_token_env_var = "SUPERSERVE_API_KEY"
                tool_timeout_sec = 620
            "#]],
        ),
    ];
    for (client, shape) in shapes {
        let mut user = User::new();
        user.target.key_is_local = false;
        let args = InstallArgs { url: Some("https://mcp.example.com/mcp".into()), ..User::args(client) };
        assert_eq!(user.run(&args), Ok(0));
        shape.assert_eq(&fs::read_to_string(user.path(client)).unwrap());
        user.undo(client);
        assert_eq!(user.all(), []);
    }
}

#[test]
fn keys_stay_where_they_are() {
    let user = User::new();
    let file = user.home.home.join("key");
    fs::write(&file, format!("{KEY}\n")).unwrap();
    let shown = file.to_str().unwrap();
    for client in CLIENTS {
        let args = InstallArgs { key_file: Some(file.clone()), ..User::args(client) };
        assert_eq!(user.run(&args), Ok(0));
        let text = fs::read_to_string(user.path(client)).unwrap();
        assert!(text.contains("--key-file") && text.contains(shown) && !text.contains(KEY), "{text}");
        assert!(!text.contains("SUPERSERVE_API_KEY"), "{text}");
        user.undo(client);
    }
    for (client, reference) in [
        (McpClient::ClaudeCode, r#""SUPERSERVE_API_KEY": "${SUPERSERVE_API_KEY}""#),
        (McpClient::Cursor, r#""SUPERSERVE_API_KEY": "${env:SUPERSERVE_API_KEY}""#),
        (McpClient::VsCode, r#""SUPERSERVE_API_KEY": "${env:SUPERSERVE_API_KEY}""#),
        (McpClient::Windsurf, r#""SUPERSERVE_API_KEY": "${env:SUPERSERVE_API_KEY}""#),
        (McpClient::Codex, r#"env_vars = ["SUPERSERVE_API_KEY"]"#),
    ] {
        assert_eq!(user.run(&InstallArgs { key_env: true, ..User::args(client) }), Ok(0));
        let text = fs::read_to_string(user.path(client)).unwrap();
        assert!(text.contains(reference) && !text.contains(KEY), "{text}");
        user.undo(client);
    }
    let desktop = InstallArgs { key_env: true, ..User::args(McpClient::ClaudeDesktop) };
    assert!(message(user.run(&desktop)).contains("--key-file"));

    // The key of the platform on this machine goes to that platform only.
    let elsewhere =
        InstallArgs { url: Some("https://evil.example/mcp".into()), ..User::args(McpClient::Cursor) };
    assert!(message(user.run(&elsewhere)).contains("no key to install"));
    for near in ["http://127.0.0.1:80801/mcp", "http://127.0.0.1:8080.evil.example/mcp"] {
        let near = InstallArgs { url: Some(near.into()), ..User::args(McpClient::Cursor) };
        assert!(user.run(&near).is_err());
    }
    let here = InstallArgs { url: Some("http://127.0.0.1:8080/mcp".into()), ..User::args(McpClient::Cursor) };
    assert_eq!(user.run(&here), Ok(0));
    user.undo(McpClient::Cursor);
    assert_eq!(user.all().len(), 1, "the key file");
}

#[test]
fn projects_hold_no_keys() {
    let user = User::new();
    let project = user.home.home.join("project");
    fs::create_dir(&project).unwrap();
    for (client, file) in [
        (McpClient::ClaudeCode, ".mcp.json"),
        (McpClient::Cursor, ".cursor/mcp.json"),
        (McpClient::VsCode, ".vscode/mcp.json"),
        (McpClient::Codex, ".codex/config.toml"),
    ] {
        let args = InstallArgs { project: Some(project.clone()), ..User::args(client) };
        if matches!(client, McpClient::ClaudeCode | McpClient::Cursor) {
            assert!(message(user.run(&args)).contains("no place for a key"));
        }
        let args = InstallArgs { key_env: true, ..args };
        assert_eq!(user.run(&args), Ok(0));
        let text = fs::read_to_string(project.join(file)).unwrap();
        assert!(text.contains("/opt/superserve") && !text.contains(KEY), "{text}");
        assert_eq!(mode(&project.join(file)), 0o644);
        assert_eq!(user.run(&InstallArgs { undo: true, key_env: false, ..args }), Ok(0));
        assert_eq!(fs::read_dir(&project).unwrap().count(), 0, "{client:?}");
    }
    let desktop = InstallArgs { project: Some(project), ..User::args(McpClient::ClaudeDesktop) };
    assert!(message(user.run(&desktop)).contains("no configuration of a project"));
}

#[test]
fn everything_else_keeps_its_bytes() {
    let vscode = "\u{feff}{\r\n\t// my servers\r\n\t\"servers\": {\r\n\t\t\"other\": { \"command\": \"x\", }, // keep\r\n\t},\r\n\t\"inputs\": [],\r\n}\r\n";
    let user = User::new();
    let edited = user.edited(McpClient::VsCode, vscode);
    for kept in ["\u{feff}{\r\n\t// my servers\r\n", "\"other\": { \"command\": \"x\", }, // keep\r\n"] {
        assert!(edited.contains(kept), "{edited:?}");
    }
    assert!(!edited.replace("\r\n", "").contains('\n'), "line ends are the file's own: {edited:?}");
    user.undo(McpClient::VsCode);
    assert_eq!(fs::read_to_string(user.path(McpClient::VsCode)).unwrap(), vscode);

    let claude = "{\"numStartups\":12345678901234567890,\"x\":1.0,\"mcpServers\":{\"a\":{\"command\":\"\\u00e4\"}},\"z\":[1,2]}";
    let edited = user.edited(McpClient::ClaudeCode, claude);
    for kept in ["12345678901234567890", "1.0", "\\u00e4", "[1,2]"] {
        assert!(edited.contains(kept), "{edited}");
    }
    assert!(edited.contains(KEY));
    user.undo(McpClient::ClaudeCode);
    assert_eq!(fs::read_to_string(user.path(McpClient::ClaudeCode)).unwrap(), claude);

    let codex = "# mine\nmodel = \"x\" # why\n\n[mcp_servers.other]\ncommand = 'y'\n\n[tui]\ntheme = 1\n";
    let edited = user.edited(McpClient::Codex, codex);
    expect![[r#"
        # mine
        model = "x" # why

        [mcp_servers.other]
        command = 'y'

        [mcp_servers.superserve]
        command = "/opt/superserve"
        args = ["mcp"]
        env_vars = ["SUPERSERVE_API_KEY"]
        env = { SUPERSERVE_BASE_URL = "http://127.0.0.1:8080" }
        tool_timeout_sec = 620

        [tui]
        theme = 1
    "#]]
    .assert_eq(&edited);
    user.undo(McpClient::Codex);
    assert_eq!(fs::read_to_string(user.path(McpClient::Codex)).unwrap(), codex);
    // Servers in one line are servers too.
    let inline = "mcp_servers = { other = { command = \"y\" } }\n";
    let edited = user.edited(McpClient::Codex, inline);
    assert!(edited.starts_with("mcp_servers = { other = { command = \"y\" } , superserve = {"), "{edited}");
    user.undo(McpClient::Codex);
    assert_eq!(fs::read_to_string(user.path(McpClient::Codex)).unwrap(), inline);
}

#[test]
fn what_others_wrote_meanwhile_survives_an_undo() {
    let user = User::new();
    user.put(McpClient::ClaudeCode, "{\"mcpServers\": {\"superserve\": {\"command\": \"old\"}}, \"n\": 1}\n");
    user.install(McpClient::ClaudeCode);
    let path = user.path(McpClient::ClaudeCode);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("\"n\": 1", "\"n\": 2")).unwrap();
    user.undo(McpClient::ClaudeCode);
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(json, serde_json::json!({"mcpServers": {"superserve": {"command": "old"}}, "n": 2}));

    user.install(McpClient::VsCode);
    let path = user.path(McpClient::VsCode);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replacen('{', "{\n  // hello", 1)).unwrap();
    user.undo(McpClient::VsCode);
    assert_eq!(fs::read_to_string(&path).unwrap().split_whitespace().collect::<String>(), "{//hello}");

    user.install(McpClient::Codex);
    let path = user.path(McpClient::Codex);
    fs::write(&path, format!("model = \"x\"\n{}", fs::read_to_string(&path).unwrap())).unwrap();
    user.undo(McpClient::Codex);
    assert_eq!(fs::read_to_string(&path).unwrap(), "model = \"x\"\n");

    // A second install, after a change of others, is taken back together with the first.
    user.install(McpClient::Cursor);
    let path = user.path(McpClient::Cursor);
    fs::write(&path, fs::read_to_string(&path).unwrap().replacen('{', "{\"a\": 1, ", 1)).unwrap();
    let second =
        InstallArgs { url: Some("http://127.0.0.1:8080/mcp".into()), ..User::args(McpClient::Cursor) };
    assert_eq!(user.run(&second), Ok(0));
    let text = fs::read_to_string(&path).unwrap();
    assert!(text.contains("headers") && !text.contains("command"), "{text}");
    user.undo(McpClient::Cursor);
    let json: serde_json::Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(json, serde_json::json!({"a": 1}));
}

#[test]
fn unusable_files_are_left_alone() {
    let deep = "[".repeat(100_000);
    let cases: [(McpClient, &str, &str); 14] = [
        (McpClient::ClaudeCode, &deep, "not valid JSON"),
        (McpClient::VsCode, &deep, "not valid JSON"),
        (McpClient::ClaudeCode, "{\"mcpServers\": {", "not valid JSON at line 1"),
        (McpClient::ClaudeCode, "{\n// a comment\n}", "not valid JSON at line 2"),
        (McpClient::ClaudeDesktop, "{\"a\": 1,}", "not valid JSON"),
        (McpClient::Windsurf, "{'a': 1}", "not valid JSON"),
        (McpClient::Cursor, "[]", "not a JSON object"),
        (McpClient::Cursor, "{\"mcpServers\": []}", "`mcpServers` is not an object"),
        (McpClient::Cursor, "{\"mcpServers\": {}, \"mcpServers\": {}}", "`mcpServers` is in it twice"),
        (McpClient::VsCode, "{\"inputs\": {}}", "`inputs` is not an array"),
        (
            McpClient::VsCode,
            "{\"servers\": {\"superserve\": 1, \"superserve\": 2}}",
            "`superserve` is in it twice",
        ),
        (McpClient::Codex, "a = \"secret", "not valid TOML at line 1"),
        (McpClient::Codex, "mcp_servers = 1", "`mcp_servers` is not a table"),
        (McpClient::Codex, "[[mcp_servers]]\na = 1", "`mcp_servers` is not a table"),
    ];
    for (client, text, problem) in cases {
        let user = User::new();
        user.put(client, text);
        let before = user.all();
        let said = message(user.run(&User::args(client)));
        assert!(said.contains(problem) && said.contains("left alone") && !said.contains("secret"), "{said}");
        assert_eq!(user.all(), before);
        assert!(!user.home.state.exists(), "nothing is on record");
    }
    let user = User::new();
    user.put(McpClient::Cursor, "");
    fs::write(user.path(McpClient::Cursor), b"{\"a\": \"\xff\"}").unwrap();
    assert!(message(user.run(&User::args(McpClient::Cursor))).contains("not UTF-8"));
    fs::create_dir_all(user.path(McpClient::Windsurf)).unwrap();
    assert!(message(user.run(&User::args(McpClient::Windsurf))).contains("is not a file"));
}

#[test]
fn modes_and_links() {
    let user = User::new();
    let real = user.home.home.join("dotfiles/mcp.json");
    fs::create_dir_all(real.parent().unwrap()).unwrap();
    fs::write(&real, "{}\n").unwrap();
    fs::set_permissions(&real, fs::Permissions::from_mode(0o644)).unwrap();
    let path = user.path(McpClient::Cursor);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    symlink("../dotfiles/mcp.json", &path).unwrap();
    let before = user.all();
    user.install(McpClient::Cursor);
    assert!(fs::symlink_metadata(&path).unwrap().is_symlink(), "the link stays");
    assert!(fs::read_to_string(&real).unwrap().contains(KEY));
    assert_eq!(mode(&real), 0o600, "others must not read the key");
    user.undo(McpClient::Cursor);
    assert_eq!(user.all(), before);
    // Without a key in it, and where the user is stricter, a file keeps its mode.
    let args = InstallArgs { key_env: true, ..User::args(McpClient::Cursor) };
    assert_eq!(user.run(&args), Ok(0));
    assert_eq!(mode(&real), 0o644);
    user.undo(McpClient::Cursor);
    fs::set_permissions(&real, fs::Permissions::from_mode(0o400)).unwrap();
    user.install(McpClient::Cursor);
    assert_eq!(mode(&real), 0o400);
    user.undo(McpClient::Cursor);
    fs::remove_file(&real).unwrap();
    assert!(message(user.run(&User::args(McpClient::Cursor))).contains("points nowhere"));
}

#[test]
fn showing_writes_nothing_and_nobody_at_the_terminal_agrees_to_nothing() {
    let user = User::new();
    for client in CLIENTS {
        let shown = InstallArgs { yes: false, dry_run: true, ..User::args(client) };
        assert_eq!(user.run(&shown), Ok(0));
        if !std::io::stdin().is_terminal() {
            let asked = InstallArgs { yes: false, ..User::args(client) };
            assert!(message(user.run(&asked)).contains("--yes"));
        }
    }
    assert_eq!(user.all(), []);
    assert!(!user.home.state.exists());
    for bad in ["", "a b", "a/b", "../x", &"a".repeat(65), "ä"] {
        assert!(
            user.run(&InstallArgs { name: bad.into(), ..User::args(McpClient::Cursor) }).is_err(),
            "{bad}"
        );
    }
    for bad in ["http://mcp.example.com/mcp", "ftp://a", "mcp.example.com", "https://u:p@a/", "/mcp"] {
        let args = InstallArgs { url: Some(bad.into()), key_env: true, ..User::args(McpClient::Cursor) };
        assert!(user.run(&args).is_err(), "{bad}");
    }
}

#[test]
fn a_file_that_changes_while_the_user_thinks_is_not_overwritten() {
    let user = User::new();
    user.put(McpClient::Cursor, "{}");
    let path = user.path(McpClient::Cursor);
    let file = File::open(&path).unwrap();
    fs::write(&path, "{\"a\": 1}").unwrap();
    let refused = file.replace("{}", 0o600).unwrap_err();
    assert!(refused.message.contains("changed meanwhile"), "{refused}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "{\"a\": 1}");
}

#[test]
fn each_file_has_a_record_of_its_own() {
    let user = User::new();
    let record = |path: &str| user.home.record(Path::new(path), "a");
    assert_ne!(record("/a/b"), record("/a_2fb"));
    let (long, longer) = ("/x".repeat(300), "/x".repeat(301));
    assert_ne!(record(&long), record(&longer));
    assert!(record(&long).file_name().unwrap().len() < 255);
}
