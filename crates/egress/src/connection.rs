//! One connection of a guest, from its acceptance to its row in the log.

use std::net::SocketAddrV4;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use domain::{Attempt, ConnectionAttempt, MatchRule, NetworkVerdict};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::broker::{self, Opened, Way};
use crate::dial::{self, NotDialled};
use crate::dns;
use crate::gateway::Shared;
use crate::http;
use crate::metered::Metered;
use crate::name::Name;
use crate::refusal;
use crate::relay::{self, Traffic};
use crate::sandboxes::Sandbox;
use crate::sniff::{self, Said};

const HTTP: u16 = 80;
const TLS: u16 = 443;
const DNS: u16 = 53;
/// Where the address is not permitted, only a name could open the way: whoever has not begun to say one by now is refused,
/// which is still within a second of the attempt.
const LAST_WORD: Duration = Duration::from_millis(700);

/// Serves a connection to its end.
pub(crate) async fn serve(shared: &Arc<Shared>, sandbox: &Arc<Sandbox>, guest: TcpStream, to: SocketAddrV4) {
    if to.port() == DNS {
        if dns::RESOLVERS.contains(to.ip()) {
            return dns::serve_stream(shared, sandbox, guest, *to.ip()).await;
        }
        if sandbox.rules().strict {
            // Another resolver would tell what this one must not.
            relay::refuse(guest);
            return Visit::of(None, to).end(shared, sandbox, NotDialled::Blocked(MatchRule::ImplicitDeny));
        }
    }
    let mut visit = Visit::of(None, to);
    let mut start = Vec::new();
    let mut is_http = false;
    if matches!(to.port(), HTTP | TLS) {
        let open = dial::judge(shared, &sandbox.rules(), None, *to.ip()).permitted;
        let patience = if open { shared.config.sniff } else { LAST_WORD };
        match sniff::listen(&guest, &mut start, patience).await {
            Said::Tls(host) if to.port() == TLS => visit.host = host,
            Said::Http(host) if to.port() == HTTP => {
                is_http = true;
                visit.host = host;
            }
            Said::Tls(_) | Said::Http(_) | Said::Unknown => {}
            Said::Gone => return visit.end(shared, sandbox, NotDialled::Failed(MatchRule::Default, "gone")),
        }
    }
    if let (TLS, Some(broker), Some(host)) = (to.port(), &shared.broker, visit.host.clone())
        && broker.opens(sandbox, &host)
    {
        let guest = Metered::new(guest, start, Arc::clone(sandbox), Arc::clone(&visit.traffic));
        let way = Way {
            shared: Arc::clone(shared),
            broker: Arc::clone(broker),
            sandbox: Arc::clone(sandbox),
            host: host.clone(),
            to,
        };
        let ruling = dial::judge(shared, &sandbox.rules(), Some(&host), *to.ip());
        visit.rule = ruling.rule;
        // The row of a connection that is cut says what it was until then.
        let visit = Recorded { visit: Some(visit), shared, sandbox };
        let opened = broker::serve(way, guest).await;
        return visit.end(opened);
    }
    let dialled = match dial::dial(shared, sandbox, visit.host.as_ref(), to).await {
        Ok(dialled) => dialled,
        Err(why) => {
            if let (true, NotDialled::Blocked(rule)) = (is_http, why) {
                let text = refusal::text(&sandbox.rules(), visit.host.as_ref(), to, rule);
                refusal::answer(guest, &text).await;
            } else {
                relay::refuse(guest);
            }
            return visit.end(shared, sandbox, why);
        }
    };
    visit.rule = dialled.rule;
    // The row is written when the connection ends, in whatever way that happens.
    let (host, traffic) = (visit.host.clone(), Arc::clone(&visit.traffic));
    let _visit = Recorded { visit: Some(visit), shared, sandbox };
    if is_http && dialled.rule == MatchRule::Domain {
        let guest = Metered::new(guest, start, Arc::clone(sandbox), traffic);
        return http::serve(shared, sandbox, guest, to, (host, dialled)).await;
    }
    if relay::write(&dialled.service, &start).await.is_err() {
        return;
    }
    traffic.sent.fetch_add(start.len() as u64, Ordering::Relaxed);
    drop(start);
    let limits = (&sandbox.upward, &sandbox.downward);
    let _reset = relay::relay(guest, dialled.service, limits, &traffic).await;
}

/// What is known of a connection.
#[derive(Debug)]
pub(crate) struct Visit {
    host: Option<Name>,
    to: SocketAddrV4,
    rule: MatchRule,
    begun: Instant,
    traffic: Arc<Traffic>,
}

impl Visit {
    pub(crate) fn of(host: Option<Name>, to: SocketAddrV4) -> Self {
        Self { host, to, rule: MatchRule::Default, begun: Instant::now(), traffic: Arc::default() }
    }

    /// Records a connection that was not opened.
    pub(crate) fn end(mut self, shared: &Shared, sandbox: &Sandbox, why: NotDialled) {
        let (verdict, error) = match why {
            NotDialled::Blocked(rule) => {
                self.rule = rule;
                (NetworkVerdict::Blocked, None)
            }
            NotDialled::Failed(rule, error) => {
                self.rule = rule;
                (NetworkVerdict::Failed, Some(error.to_owned()))
            }
        };
        shared.report(sandbox, self.attempt(verdict, error));
    }

    fn attempt(&self, verdict: NetworkVerdict, error: Option<String>) -> Attempt {
        Attempt::Connection(ConnectionAttempt {
            host: self.host.as_ref().map(Name::to_string),
            to: self.to,
            verdict,
            rule: self.rule,
            sent: self.traffic.sent.load(Ordering::Relaxed),
            received: self.traffic.received.load(Ordering::Relaxed),
            took: self.begun.elapsed(),
            error,
        })
    }
}

/// A connection that is recorded when it ends, in whatever way that happens.
struct Recorded<'a> {
    visit: Option<Visit>,
    shared: &'a Shared,
    sandbox: &'a Sandbox,
}

impl Recorded<'_> {
    fn end(mut self, opened: Opened) {
        if let Opened::Not(why) = opened
            && let Some(visit) = self.visit.take()
        {
            visit.end(self.shared, self.sandbox, why);
        }
    }
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        if let Some(visit) = &self.visit {
            self.shared.report(self.sandbox, visit.attempt(NetworkVerdict::Allowed, None));
        }
    }
}

/// Refuses a connection for which there is no room, and records that.
pub(crate) fn no_room(shared: &Shared, sandbox: &Sandbox, guest: TcpStream, to: SocketAddrV4) {
    relay::refuse(guest);
    Visit::of(None, to).end(shared, sandbox, NotDialled::Blocked(MatchRule::Limit));
}
