//! One connection of a guest, from its acceptance to its row in the log.

use std::net::SocketAddrV4;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use domain::{Attempt, ConnectionAttempt, MatchRule, NetworkVerdict};
use tokio::net::TcpStream;
use tokio::time::Instant;

use crate::dial::{self, NotDialled};
use crate::dns;
use crate::gateway::Shared;
use crate::http;
use crate::intercept::{Intercepted, Interceptor, Way};
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

/// Where TLS may have to be opened, its beginning is waited for. On port 443 nobody waits for the other side to speak first,
/// but GnuTLS reads some hundred certificates between connecting and speaking.
const FIRST_WORD: Duration = Duration::from_secs(10);

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
    let mut opened = None;
    let concerns = shared.config.interceptor.as_ref().is_some_and(|one| one.concerns(sandbox.id));
    if matches!(to.port(), HTTP | TLS) {
        let ruling = dial::judge(shared, &sandbox.rules(), None, *to.ip());
        let patience = match (ruling.permitted, to.port()) {
            (true, TLS) if concerns => FIRST_WORD,
            (true, _) => shared.config.sniff,
            (false, _) => LAST_WORD,
        };
        match sniff::listen(&guest, &mut start, patience).await {
            Said::Tls(host) if to.port() == TLS => {
                opened = interceptor(shared, sandbox, host.as_ref());
                visit.host = host;
            }
            Said::Http(host) if to.port() == HTTP => {
                is_http = true;
                visit.host = host;
            }
            Said::Tls(_) | Said::Http(_) | Said::Unknown => {}
            Said::Gone if ruling.permitted => {
                return visit.end(shared, sandbox, NotDialled::Failed(ruling.rule, "gone"));
            }
            // It named nothing that could have opened the way, and would have been refused.
            Said::Gone => return visit.end(shared, sandbox, NotDialled::Blocked(ruling.rule)),
        }
    } else if concerns && dial::judge(shared, &sandbox.rules(), None, *to.ip()).permitted {
        // A secret is for its hosts whatever their port. The name decides on nothing else here.
        if let Said::Tls(host) = sniff::listen(&guest, &mut start, shared.config.sniff).await {
            opened = interceptor(shared, sandbox, host.as_ref());
        }
    }
    let dialled = dial::dial(shared, sandbox, visit.host.as_ref(), to).await;
    if let Some((host, interceptor)) = opened {
        let named = visit.host.clone();
        let guest = Metered::new(guest, start, Arc::clone(sandbox), Arc::clone(&visit.traffic));
        // Even when it cannot be reached, the guest is told why.
        let (_open, first) = match dialled {
            Ok(dialled) => {
                visit.rule = dialled.rule;
                (Some(Recorded { visit, shared, sandbox }), Ok(dialled))
            }
            Err(why) => {
                visit.end(shared, sandbox, why);
                (None, Err(why))
            }
        };
        let way = Way {
            shared: Arc::clone(shared),
            sandbox: Arc::clone(sandbox),
            host: named,
            to,
            first: Mutex::new(Some(first)),
        };
        let (sandbox, guest, dial) = (sandbox.id, Box::new(guest), Arc::new(way));
        return interceptor.serve(Intercepted { sandbox, host, guest, dial }).await;
    }
    let dialled = match dialled {
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
    let visit = Recorded { visit, shared, sandbox };
    let traffic = &visit.visit.traffic;
    if is_http && dialled.rule == MatchRule::Domain {
        let guest = Metered::new(guest, start, Arc::clone(sandbox), Arc::clone(traffic));
        return http::serve(shared, sandbox, guest, to, (visit.visit.host.clone(), dialled)).await;
    }
    if relay::write(&dialled.service, &start).await.is_err() {
        return;
    }
    traffic.sent.fetch_add(start.len() as u64, Ordering::Relaxed);
    drop(start);
    let limits = (&sandbox.upward, &sandbox.downward);
    let _reset = relay::relay(guest, dialled.service, limits, traffic).await;
}

/// Who opens TLS of this sandbox to this host, if somebody does.
fn interceptor(
    shared: &Shared,
    sandbox: &Sandbox,
    host: Option<&Name>,
) -> Option<(String, Arc<dyn Interceptor>)> {
    let (host, interceptor) = (host?.as_str(), shared.config.interceptor.as_ref()?);
    interceptor.wants(sandbox.id, host).then(|| (host.to_owned(), Arc::clone(interceptor)))
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

struct Recorded<'a> {
    visit: Visit,
    shared: &'a Shared,
    sandbox: &'a Sandbox,
}

impl Drop for Recorded<'_> {
    fn drop(&mut self) {
        self.shared.report(self.sandbox, self.visit.attempt(NetworkVerdict::Allowed, None));
    }
}

/// Refuses a connection for which there is no room, and records that.
pub(crate) fn no_room(shared: &Shared, sandbox: &Sandbox, guest: TcpStream, to: SocketAddrV4) {
    relay::refuse(guest);
    Visit::of(None, to).end(shared, sandbox, NotDialled::Blocked(MatchRule::Limit));
}
