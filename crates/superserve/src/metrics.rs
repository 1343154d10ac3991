//! What is counted, and the page that shows it in the text format of Prometheus. Labels come from short fixed lists: no
//! sandbox, no path, no name, and nothing a client or a guest can choose.

use std::fmt::Write as _;

use activity::Stats;
use axum::http::Method;
use prometheus::{HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry, TextEncoder};

/// Seconds; from a kept answer to the longest a client waits.
const BUCKETS: [f64; 13] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0];

/// The counters of one server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    request_seconds: HistogramVec,
    data_requests: IntCounterVec,
    data_seconds: HistogramVec,
    data_bytes: IntCounterVec,
    oauth: IntCounterVec,
}

/// What is not counted but looked at when the page is asked for.
#[derive(Debug)]
pub(crate) struct Now {
    pub(crate) sandboxes: Vec<(&'static str, u64)>,
    pub(crate) requests_waiting: usize,
    pub(crate) activity: Stats,
    pub(crate) network: Stats,
    /// The way out of sandboxes.
    pub(crate) egress: egress::Stats,
}

impl Metrics {
    pub(crate) fn new() -> Result<Self, prometheus::Error> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str, labels: &[&str]| {
            let counter = IntCounterVec::new(Opts::new(name, help), labels)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let histogram = |name: &str, help: &str, labels: &[&str]| {
            let options = HistogramOpts::new(name, help).buckets(BUCKETS.to_vec());
            let histogram = HistogramVec::new(options, labels)?;
            registry.register(Box::new(histogram.clone()))?;
            Ok::<_, prometheus::Error>(histogram)
        };
        Ok(Self {
            requests: counter(
                "superserve_requests_total",
                "Answers of the control plane",
                &["method", "route", "status"],
            )?,
            request_seconds: histogram(
                "superserve_request_seconds",
                "Time until the head of an answer of the control plane",
                &["route"],
            )?,
            data_requests: counter(
                "superserve_data_plane_requests_total",
                "Data-plane requests that ended; agent_failed means that the guest's agent did not answer",
                &["kind", "outcome", "status"],
            )?,
            data_seconds: histogram(
                "superserve_data_plane_request_seconds",
                "Time until the end of a data-plane request that a guest answered",
                &["kind"],
            )?,
            data_bytes: counter(
                "superserve_data_plane_bytes_total",
                "Bytes of bodies and sessions, in from clients and out to them",
                &["kind", "direction"],
            )?,
            oauth: counter(
                "superserve_oauth_events_total",
                "What clients did that connect with OAuth",
                &["event"],
            )?,
            registry,
        })
    }

    pub(crate) fn control_plane(&self, answered: api::Answered<'_>) {
        let method = match *answered.method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::PATCH => "PATCH",
            Method::DELETE => "DELETE",
            _ => "other",
        };
        self.requests.with_label_values(&[method, answered.route, &answered.status.to_string()]).inc();
        self.request_seconds.with_label_values(&[answered.route]).observe(answered.took.as_secs_f64());
    }

    pub(crate) fn data_plane(&self, event: &edge::Event) {
        let (kind, outcome) = (event.kind.as_str(), event.outcome.as_str());
        // A guest chooses the number.
        let status = match event.status {
            0 => "none",
            100..200 => "1xx",
            200..300 => "2xx",
            300..400 => "3xx",
            400..500 => "4xx",
            _ => "5xx",
        };
        self.data_requests.with_label_values(&[kind, outcome, status]).inc();
        self.data_bytes.with_label_values(&[kind, "in"]).inc_by(event.bytes_in);
        self.data_bytes.with_label_values(&[kind, "out"]).inc_by(event.bytes_out);
        if event.outcome == edge::Outcome::Answered {
            self.data_seconds.with_label_values(&[kind]).observe(event.took.as_secs_f64());
        }
    }

    pub(crate) fn oauth(&self, event: &oauth::Event) {
        self.oauth.with_label_values(&[event.as_str()]).inc();
    }

    pub(crate) fn page(&self, now: &Now) -> String {
        let mut page = TextEncoder::new().encode_to_string(&self.registry.gather()).unwrap_or_else(|error| {
            tracing::error!(%error, "cannot write the metrics");
            String::new()
        });
        let mut family = |name: &str, kind: &str, help: &str, values: &[(String, f64)]| {
            let _a_string_takes_everything = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in values {
                let _a_string_takes_everything = writeln!(page, "{name}{labels} {value}");
            }
        };
        let plain = |value: f64| [(String::new(), value)];
        let number = |value: u64| value as f64;
        let states: Vec<_> = now
            .sandboxes
            .iter()
            .map(|(state, count)| (format!("{{state=\"{state}\"}}"), number(*count)))
            .collect();
        family("superserve_sandboxes", "gauge", "Sandboxes by state", &states);
        let queues = [
            ("{queue=\"activity\"}".to_owned(), number(now.activity.queued as u64)),
            ("{queue=\"network\"}".to_owned(), number(now.network.queued as u64)),
            ("{queue=\"sandboxes\"}".to_owned(), number(now.requests_waiting as u64)),
        ];
        family("superserve_queue_depth", "gauge", "What waits to be looked at", &queues);
        for (name, stats, what) in [
            ("activity", now.activity, "Entries of the activity log"),
            ("network_log", now.network, "Rows of the network log"),
        ] {
            family(
                &format!("superserve_{name}_written_total"),
                "counter",
                what,
                &plain(number(stats.written)),
            );
            family(
                &format!("superserve_{name}_dropped_total"),
                "counter",
                &format!("{what} that could not be kept: the queue was full, or the database failed"),
                &plain(number(stats.dropped)),
            );
        }
        let egress = now.egress;
        let verdict = |verdict: &str, value: u64| (format!("{{verdict=\"{verdict}\"}}"), number(value));
        family(
            "superserve_egress_connections_total",
            "counter",
            "Connections out of sandboxes that ended, and questions to resolvers that were not answered",
            &[
                verdict("allowed", egress.allowed),
                verdict("blocked", egress.blocked),
                verdict("failed", egress.failed),
            ],
        );
        family(
            "superserve_egress_bytes_total",
            "counter",
            "Bytes of connections out of sandboxes that ended",
            &[
                ("{direction=\"out\"}".to_owned(), number(egress.sent)),
                ("{direction=\"in\"}".to_owned(), number(egress.received)),
            ],
        );
        for (name, kind, help, value) in [
            ("sandboxes", "gauge", "Sandboxes that are let out by their rules", egress.sandboxes as u64),
            ("open_connections", "gauge", "Connections out of sandboxes", egress.open as u64),
            ("questions_total", "counter", "Questions to resolvers", egress.questions),
            ("refused_packets_total", "counter", "Packets of protocols no sandbox has", egress.packets),
            ("strangers_total", "counter", "Connections from addresses of no sandbox", egress.strangers),
            ("unlogged_total", "counter", "Events of sandboxes that caused too many", egress.unlogged),
        ] {
            family(&format!("superserve_egress_{name}"), kind, help, &plain(number(value)));
        }
        let build = [(format!("{{version=\"{}\"}}", env!("CARGO_PKG_VERSION")), 1.0)];
        family("superserve_build_info", "gauge", "This release", &build);
        for (name, kind, help, value) in process::numbers() {
            family(name, kind, help, &plain(value));
        }
        page
    }
}

/// The numbers every Prometheus client gives of its process, from `proc_pid_stat(5)` and its neighbours.
mod process {
    /// USER_HZ: part of the system-call interface, the same on all machines this program runs on.
    const TICKS: f64 = 100.0;

    type Number = (&'static str, &'static str, &'static str, f64);

    /// What can be read; what cannot is left out.
    pub(super) fn numbers() -> Vec<Number> {
        let mut numbers = Vec::new();
        if let Ok(stat) = std::fs::read_to_string("/proc/self/stat") {
            // The name in parentheses may hold anything; what follows it begins with field 3.
            let fields: Vec<f64> = stat
                .rsplit(')')
                .next()
                .into_iter()
                .flat_map(str::split_whitespace)
                .map(|field| field.parse().unwrap_or(0.0))
                .collect();
            let field = |number: usize| fields.get(number - 3).copied().unwrap_or(0.0);
            let cpu = (field(14) + field(15)) / TICKS;
            numbers.push(("process_cpu_seconds_total", "counter", "Processor time used", cpu));
            numbers.push(("process_threads", "gauge", "Threads", field(20)));
            if let Some(boot) = line("/proc/stat", "btime") {
                let start = boot + field(22) / TICKS;
                numbers.push(("process_start_time_seconds", "gauge", "Start, seconds since 1970", start));
            }
        }
        if let Some(resident) = line("/proc/self/status", "VmRSS:") {
            let bytes = resident * 1024.0;
            numbers.push(("process_resident_memory_bytes", "gauge", "Resident memory", bytes));
        }
        if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
            let open = open.count() as f64;
            numbers.push(("process_open_fds", "gauge", "Open descriptors", open));
        }
        if let Some(most) = rustix::process::getrlimit(rustix::process::Resource::Nofile).current {
            let most = most as f64;
            numbers.push(("process_max_fds", "gauge", "Most open descriptors", most));
        }
        numbers
    }

    /// The first number of the line that begins with this word.
    fn line(file: &str, word: &str) -> Option<f64> {
        let text = std::fs::read_to_string(file).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix(word))?;
        line.split_whitespace().next()?.parse().ok()
    }
}
