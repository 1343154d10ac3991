//! `sandbox network`: the network log, oldest first, as lines for people or as JSON lines. `sandbox rules`: what may be
//! reached.

use std::collections::BTreeMap;
use std::time::Duration;

use client::{Client, ClientError, NetworkEvent, NetworkFilter, NetworkLists, PatchSandbox};

use crate::args::{NetworkArgs, RulesArgs};
use crate::error::CliError;
use crate::out::{self, Stop, printable};
use crate::sandbox::whole_seconds;

/// Rows of one request, the most there is.
const PAGE: usize = 200;
/// Rows that are taken at once while following; more than a server keeps of one sandbox.
const MOST: usize = 50_000;
/// How often `--follow` looks; a person sees no difference.
const POLL: Duration = Duration::from_secs(1);
/// A failed look is repeated after this: the server may be restarting.
const RETRY: Duration = Duration::from_secs(3);

pub(crate) async fn log(args: NetworkArgs, client: &Client, json: bool) -> Result<(), Stop> {
    let failed = |error: &ClientError| CliError::of_sandbox(error, &args.id);
    let mut reader = Reader {
        client,
        id: &args.id,
        filter: NetworkFilter {
            since: args.since.clone(),
            verdict: args.verdict.clone(),
            kinds: args.all.then(|| "all".to_owned()),
            ..NetworkFilter::default()
        },
        newest: BTreeMap::new(),
    };
    let show = |row: &NetworkEvent| {
        if json { out::line(&serde_json::to_string(row).unwrap_or_default()) } else { out::line(&line(row)) }
    };
    let first = reader.next(args.limit as usize).await.map_err(|error| failed(&error))?;
    if first.is_empty() && !args.follow && !json {
        out::note("No network activity.");
    }
    first.iter().try_for_each(show)?;
    if !args.follow {
        return Ok(());
    }
    loop {
        tokio::time::sleep(POLL).await;
        match reader.next(MOST).await {
            Ok(rows) => rows.iter().try_for_each(show)?,
            Err(error) if error.may_pass() => tokio::time::sleep(RETRY).await,
            Err(error) => return Err(failed(&error).into()),
        }
    }
}

/// Reads what has come since it was last asked.
struct Reader<'a> {
    client: &'a Client,
    id: &'a str,
    filter: NetworkFilter,
    /// The newest row of each kind that has been given; ids count upwards within a kind.
    newest: BTreeMap<String, i64>,
}

impl Reader<'_> {
    /// At most `limit` of the newest rows that have not been given yet, oldest first.
    async fn next(&mut self, limit: usize) -> Result<Vec<NetworkEvent>, ClientError> {
        let mut fresh = Vec::new();
        self.filter.before = None;
        loop {
            let left = limit.saturating_sub(fresh.len()).clamp(1, PAGE);
            self.filter.limit = u32::try_from(left).ok();
            let page = self.client.network_log(self.id, &self.filter).await?;
            let count = page.data.len();
            let known = |row: &NetworkEvent| self.newest.get(&row.kind).is_some_and(|id| row.id <= *id);
            let unknown = fresh.len();
            fresh.extend(page.data.into_iter().filter(|row| !known(row)));
            let met = fresh.len() - unknown < count;
            self.filter.before = page.next_cursor.filter(|_| page.has_more && !met && fresh.len() < limit);
            if self.filter.before.is_none() {
                break;
            }
        }
        fresh.truncate(limit);
        for row in &fresh {
            let newest = self.newest.entry(row.kind.clone()).or_insert(row.id);
            *newest = row.id.max(*newest);
        }
        fresh.reverse();
        Ok(fresh)
    }
}

fn line(row: &NetworkEvent) -> String {
    let or_dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
    let host = row.host.clone().or_else(|| row.dst_ip.clone()).unwrap_or_else(|| "-".to_owned());
    let to = match (&row.dst_ip, row.dst_port) {
        (Some(ip), Some(port)) if row.host.is_some() => format!("{host} ({ip}:{port})"),
        (_, Some(port)) => format!("{host}:{port}"),
        _ => host.clone(),
    };
    let mut text = format!("{}  ", whole_seconds(&row.ts));
    text += &match row.kind.as_str() {
        "request" => {
            let status = row.status.map_or_else(|| "-".to_owned(), |status| status.to_string());
            format!(
                "request  {} {host}{}  {status}",
                or_dash(&row.method),
                row.path.as_deref().unwrap_or("/")
            )
        }
        "dns" => format!("{:<7}  dns {} {to}", or_dash(&row.verdict), or_dash(&row.protocol)),
        "packet" => {
            let count = row.packets.unwrap_or(1);
            format!("{:<7}  {} {to}  {count} packets", or_dash(&row.verdict), or_dash(&row.protocol))
        }
        _ => {
            let (sent, received) = (row.bytes_sent.unwrap_or(0), row.bytes_recv.unwrap_or(0));
            format!("{:<7}  {to}  {sent} B out, {received} B in", or_dash(&row.verdict))
        }
    };
    for (name, value) in [("rule", &row.match_rule), ("error", &row.error_code)] {
        if let Some(value) = value {
            text += &format!("  {name}: {value}");
        }
    }
    // Names are chosen by guests: they must not move the cursor of whoever reads them.
    printable(&text)
}

pub(crate) async fn rules(args: RulesArgs, client: &Client, json: bool) -> Result<(), Stop> {
    let failed = |error: ClientError| CliError::of_sandbox(&error, &args.id);
    let present = client.get_sandbox(&args.id).await.map_err(failed)?.item.network.unwrap_or_default();
    let rules = wanted(&args, &present);
    if rules != present || args.clear {
        let patch = PatchSandbox { network: Some(rules.clone()), ..PatchSandbox::default() };
        client.patch_sandbox(&args.id, &patch).await.map_err(failed)?;
    }
    // As the platform writes them.
    let rules = client.get_sandbox(&args.id).await.map_err(failed)?.item.network.unwrap_or_default();
    if json {
        return out::json(&rules);
    }
    let list = |list: &Option<Vec<String>>| match list.as_deref() {
        None | Some([]) => "(none)".to_owned(),
        Some(list) => printable(&list.join(", ")),
    };
    let strict = if rules.strict == Some(true) { "on" } else { "off" };
    out::line(&format!("allow out  {}\ndeny out   {}", list(&rules.allow_out), list(&rules.deny_out)))?;
    out::line(&format!("strict     {strict}"))
}

/// The rules as they are to be: the platform replaces both lists at once, so what is not named is sent along.
fn wanted(args: &RulesArgs, present: &NetworkLists) -> NetworkLists {
    let from = if args.clear {
        NetworkLists { strict: Some(false), ..NetworkLists::default() }
    } else {
        present.clone()
    };
    let or =
        |list: &[String], from: Option<Vec<String>>| if list.is_empty() { from } else { Some(list.to_vec()) };
    NetworkLists {
        allow_out: or(&args.allow_out, from.allow_out),
        deny_out: or(&args.deny_out, from.deny_out),
        strict: args.strict.or(from.strict),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_lines() {
        let row = |json: &str| line(&serde_json::from_str(json).unwrap());
        let all = [
            r#"{"kind":"connection","id":1,"ts":"2026-01-02T03:04:05.000006Z","host":"a.example","dst_ip":"198.51.100.7",
                "dst_port":443,"verdict":"allowed","match_rule":"domain","bytes_sent":5,"bytes_recv":7}"#,
            r#"{"kind":"connection","id":2,"ts":"2026-01-02T03:04:05Z","dst_ip":"10.0.0.1","dst_port":80,
                "verdict":"blocked","match_rule":"internal-ip"}"#,
            r#"{"kind":"request","id":3,"ts":"2026-01-02T03:04:05Z","host":"a.example","method":"GET","path":"/v1",
                "status":403,"error_code":"credential_host_mismatch"}"#,
            r#"{"kind":"dns","id":4,"ts":"2026-01-02T03:04:05Z","host":"evil\u001b[2J.test","dst_ip":"1.1.1.1",
                "dst_port":53,"verdict":"blocked","match_rule":"implicit-deny","protocol":"TXT"}"#,
            r#"{"kind":"packet","id":5,"ts":"2026-01-02T03:04:05Z","dst_ip":"198.51.100.7","dst_port":123,
                "verdict":"blocked","match_rule":"protocol","protocol":"udp","packets":3}"#,
            r#"{"kind":"new","id":6,"ts":"later"}"#,
        ];
        expect_test::expect![[r#"
            2026-01-02T03:04:05Z  allowed  a.example (198.51.100.7:443)  5 B out, 7 B in  rule: domain
            2026-01-02T03:04:05Z  blocked  10.0.0.1:80  0 B out, 0 B in  rule: internal-ip
            2026-01-02T03:04:05Z  request  GET a.example/v1  403  error: credential_host_mismatch
            2026-01-02T03:04:05Z  blocked  dns TXT evil�[2J.test (1.1.1.1:53)  rule: implicit-deny
            2026-01-02T03:04:05Z  blocked  udp 198.51.100.7:123  3 packets  rule: protocol
            later  -        -  0 B out, 0 B in"#]]
        .assert_eq(&all.map(row).join("\n"));
    }

    #[test]
    fn what_is_not_named_stays() {
        let own = |list: &[&str]| Some(list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>());
        let present =
            NetworkLists { allow_out: own(&["a.example"]), deny_out: own(&["0.0.0.0/0"]), strict: None };
        let args = RulesArgs { id: "x".into(), ..RulesArgs::default() };
        assert_eq!(wanted(&args, &present), present);
        let args = RulesArgs { allow_out: vec!["b.example".into()], strict: Some(true), ..args };
        let changed = NetworkLists {
            allow_out: own(&["b.example"]),
            deny_out: own(&["0.0.0.0/0"]),
            strict: Some(true),
        };
        assert_eq!(wanted(&args, &present), changed);
        let args = RulesArgs { id: "x".into(), clear: true, ..RulesArgs::default() };
        assert_eq!(wanted(&args, &changed), NetworkLists { strict: Some(false), ..NetworkLists::default() });
    }
}
