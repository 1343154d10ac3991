//! Refusals that explain themselves: what was refused, by which rule, and how to change it.

use std::net::SocketAddrV4;
use std::time::Duration;

use domain::{EgressRules, MatchRule};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::name::Name;
use crate::relay;

/// Header that tells programs whose answer this is.
pub(crate) const HEADER: &str = "X-Superserve-Proxy-Error";
pub(crate) const REASON_HEADER: &str = "X-Superserve-Proxy-Reason";
/// Reason of everything that is refused by a rule (`spec/semantics.md` §6.4).
pub(crate) const REASON: &str = "egress_blocked";
/// What a guest still sends while it is refused is read for this long, or the answer would be lost.
const DRAIN: Duration = Duration::from_millis(500);
const MAX_DRAINED: usize = 1024 * 1024;

/// A refusal for people and agents.
pub(crate) fn text(rules: &EgressRules, host: Option<&Name>, to: SocketAddrV4, rule: MatchRule) -> String {
    let shown = host.map_or_else(|| to.ip().to_string(), Name::to_string);
    let entry = host.map_or_else(|| format!("{}/32", to.ip()), Name::to_string);
    let change = format!(
        "To permit it, add \"{entry}\" to allow_out in the sandbox's network rules: the tool sandbox_update, \
         PATCH /sandboxes/{{id}}, or superserve sandbox network. From inside the sandbox they cannot be changed."
    );
    let (why, next) = match rule {
        MatchRule::Cidr => {
            let entry = rules.deny_cidrs.iter().find(|cidr| cidr.contains(*to.ip()));
            let entry = entry.map_or_else(|| "deny_out".to_owned(), |cidr| format!("deny_out {cidr}"));
            (format!("the sandbox's rules refuse it ({entry}), and nothing in allow_out permits it"), change)
        }
        MatchRule::InternalIp => (
            "it leads to a private, local or otherwise internal address, which no rule can open".to_owned(),
            "Use a public address. The operator can open private networks for sandboxes (permitted_ranges)."
                .to_owned(),
        ),
        MatchRule::Blocklist => (
            "the operator of this platform has closed that network to all sandboxes".to_owned(),
            "Ask the operator.".to_owned(),
        ),
        MatchRule::ImplicitDeny | MatchRule::Domain | MatchRule::Default | MatchRule::Protocol => {
            ("the sandbox's network is strict and nothing in allow_out permits it".to_owned(), change)
        }
        MatchRule::Limit => (
            "the sandbox has as many connections open as it may".to_owned(),
            "Close some, or wait until some are closed.".to_owned(),
        ),
    };
    format!("Superserve refused this request to {shown} ({to}): {why}.\n{next}\n")
}

/// Answers an HTTP/1 request with a refusal, and ends the connection.
pub(crate) async fn answer(mut guest: TcpStream, text: &str) {
    let head = format!(
        "HTTP/1.1 403 Forbidden\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: {}\r\n\
         {HEADER}: true\r\n{REASON_HEADER}: {REASON}\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n",
        text.len()
    );
    let _one_who_does_not_listen = timeout(DRAIN, async {
        guest.write_all(format!("{head}{text}").as_bytes()).await?;
        guest.shutdown().await?;
        let mut sink = [0; 8 * 1024];
        let mut left = MAX_DRAINED;
        while left > 0 {
            match guest.read(&mut sink).await? {
                0 => break,
                read => left = left.saturating_sub(read),
            }
        }
        std::io::Result::Ok(())
    })
    .await;
    relay::close_cleanly(guest);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_rule_and_the_way_out() {
        let rules = EgressRules::parse(&["*.example.com".into()], &["198.51.100.0/24".into()]).unwrap();
        let to = "198.51.100.7:80".parse().unwrap();
        let host = Name::parse(b"evil.example");
        let text = text(&rules, host.as_ref(), to, MatchRule::Cidr);
        for part in [
            "evil.example",
            "198.51.100.7:80",
            "deny_out 198.51.100.0/24",
            "add \"evil.example\" to allow_out",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
        let text = super::text(&rules, None, to, MatchRule::InternalIp);
        assert!(text.contains("no rule can open") && !text.contains("allow_out"), "{text}");
    }
}
