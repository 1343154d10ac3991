//! The network log (`spec/rest-api.md` §9): rows are added in batches, read by the page from the newest on, and removed
//! from the old end in small steps. It holds what guests chose (names, paths), bounded here whoever wrote it.

use std::net::{IpAddr, Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use domain::{
    Attempt, ConnectionAttempt, DnsAttempt, MAX_LOGGED_HOST, MAX_LOGGED_METHOD, MAX_LOGGED_PATH,
    NetworkEvent, NetworkKind, NetworkVerdict, PacketAttempt, RequestAttempt, SandboxId,
};
use jiff::Timestamp;
use sqlx::sqlite::SqliteRow;
use sqlx::{QueryBuilder, Row, Sqlite};

use crate::{PRUNE_STEP, Store, StoreError, columns, secret_audit};

/// Longest code or name of a protocol.
pub(crate) const MAX_WORD: usize = 64;

/// An event as it is kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkRow {
    /// Counts upwards in the order in which events were over.
    pub id: i64,
    /// What happened.
    pub event: NetworkEvent,
}

/// Where a page begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NetworkBefore {
    /// Below this row.
    Row(i64),
    /// With rows that are strictly older.
    Time(Timestamp),
}

/// What a page of the network log is narrowed to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkFilter {
    /// Only these kinds.
    pub kinds: Vec<NetworkKind>,
    /// Only this verdict, which rows of requests do not have.
    pub verdict: Option<NetworkVerdict>,
    /// Only rows before this.
    pub before: Option<NetworkBefore>,
    /// Not older.
    pub since: Option<Timestamp>,
    /// Most rows.
    pub limit: u32,
}

/// How much of the network log is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetworkRetention {
    /// Newest rows of each sandbox; as many again of the kinds that are shown only when asked for, so that a flood of
    /// look-ups does not push the connections out.
    pub rows: u32,
    /// Oldest age, days.
    pub days: u32,
}

impl NetworkRetention {
    /// The time before which nothing is kept.
    #[must_use]
    pub fn since(&self, now: Timestamp) -> Timestamp {
        let age = jiff::SignedDuration::from_hours(i64::from(self.days) * 24);
        now.saturating_sub(age).unwrap_or(Timestamp::MIN)
    }
}

/// The columns of a row; which are set depends on the kind.
#[derive(Default)]
struct Columns<'a> {
    verdict: Option<&'static str>,
    rule: Option<&'static str>,
    host: Option<&'a str>,
    ip: Option<IpAddr>,
    port: Option<u16>,
    protocol: Option<&'a str>,
    sent: Option<u64>,
    received: Option<u64>,
    packets: Option<u64>,
    took: Option<Duration>,
    method: Option<&'a str>,
    path: Option<&'a str>,
    status: Option<u16>,
    upstream: Option<u16>,
    secret: Option<String>,
    error: Option<&'a str>,
}

fn columns_of(attempt: &Attempt) -> Columns<'_> {
    match attempt {
        Attempt::Connection(c) => Columns {
            verdict: Some(c.verdict.as_str()),
            rule: Some(c.rule.as_str()),
            host: c.host.as_deref(),
            ip: Some(IpAddr::V4(*c.to.ip())),
            port: Some(c.to.port()),
            sent: Some(c.sent),
            received: Some(c.received),
            took: Some(c.took),
            error: c.error.as_deref(),
            ..Columns::default()
        },
        Attempt::Request(r) => Columns {
            host: Some(&r.host),
            took: Some(r.latency),
            method: Some(&r.method),
            path: Some(&r.path),
            status: Some(r.status),
            upstream: r.upstream_status,
            secret: r.secret.map(|id| id.to_string()),
            error: r.error.as_deref(),
            ..Columns::default()
        },
        Attempt::Dns(d) => Columns {
            verdict: Some(d.verdict.as_str()),
            rule: Some(d.rule.as_str()),
            host: Some(&d.name),
            ip: Some(IpAddr::V4(*d.to.ip())),
            port: Some(d.to.port()),
            protocol: Some(&d.record),
            error: d.error.as_deref(),
            ..Columns::default()
        },
        Attempt::Packet(p) => Columns {
            verdict: Some(NetworkVerdict::Blocked.as_str()),
            rule: Some(p.rule.as_str()),
            ip: p.to,
            port: p.port,
            protocol: Some(&p.protocol),
            packets: Some(p.count),
            ..Columns::default()
        },
    }
}

/// At most so many bytes, at a character's end.
pub(crate) fn cut(text: Option<&str>, most: usize) -> Option<&str> {
    text.map(|text| &text[..text.floor_char_boundary(most)])
}

pub(crate) fn millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn read(row: &SqliteRow) -> Result<NetworkRow, StoreError> {
    let text = |column| row.try_get::<Option<String>, _>(column);
    let took = || Ok::<_, StoreError>(Duration::from_millis(columns::number(row, "took_ms")?));
    let to = || {
        Ok::<_, StoreError>(SocketAddrV4::new(
            columns::parsed::<Ipv4Addr>(row, "dst_ip")?,
            columns::number(row, "dst_port")?,
        ))
    };
    let what = match columns::parsed::<NetworkKind>(row, "kind")? {
        NetworkKind::Connection => Attempt::Connection(ConnectionAttempt {
            host: text("host")?,
            to: to()?,
            verdict: columns::parsed(row, "verdict")?,
            rule: columns::parsed(row, "match_rule")?,
            sent: columns::number(row, "sent")?,
            received: columns::number(row, "received")?,
            took: took()?,
            error: text("error")?,
        }),
        NetworkKind::Request => Attempt::Request(RequestAttempt {
            secret: columns::maybe_parsed(row, "secret")?,
            method: row.try_get("method")?,
            host: row.try_get("host")?,
            path: row.try_get("path")?,
            status: columns::number(row, "status")?,
            upstream_status: columns::maybe_number(row, "upstream_status")?,
            latency: took()?,
            error: text("error")?,
        }),
        NetworkKind::Dns => Attempt::Dns(DnsAttempt {
            name: row.try_get("host")?,
            record: row.try_get("protocol")?,
            to: to()?,
            verdict: columns::parsed(row, "verdict")?,
            rule: columns::parsed(row, "match_rule")?,
            error: text("error")?,
        }),
        NetworkKind::Packet => Attempt::Packet(PacketAttempt {
            protocol: row.try_get("protocol")?,
            to: columns::maybe_parsed(row, "dst_ip")?,
            port: columns::maybe_number(row, "dst_port")?,
            count: columns::number(row, "packets")?,
            rule: columns::parsed(row, "match_rule")?,
        }),
    };
    let event =
        NetworkEvent { sandbox: columns::parsed(row, "sandbox")?, at: columns::time(row, "at")?, what };
    Ok(NetworkRow { id: row.try_get("seq")?, event })
}

impl Store {
    /// Adds events in their order, all or none. An event of a sandbox that is gone leaves no row, except in the audit of the
    /// secret it is about.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn network_log_add(&self, events: &[NetworkEvent]) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        for event in events {
            let c = columns_of(&event.what);
            sqlx::query(
                "INSERT INTO network_log (sandbox, at, kind, verdict, match_rule, host, dst_ip, dst_port, protocol, sent, \
                 received, packets, took_ms, method, path, status, upstream_status, secret, error) \
                 SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19 \
                 WHERE EXISTS (SELECT 1 FROM sandboxes WHERE id = $1)",
            )
            .bind(event.sandbox.to_string())
            .bind(event.at.as_microsecond())
            .bind(event.what.kind().as_str())
            .bind(c.verdict)
            .bind(c.rule)
            .bind(cut(c.host, MAX_LOGGED_HOST))
            .bind(c.ip.map(|ip| ip.to_string()))
            .bind(c.port.map(i64::from))
            .bind(cut(c.protocol, MAX_WORD))
            .bind(c.sent.map(signed))
            .bind(c.received.map(signed))
            .bind(c.packets.map(signed))
            .bind(c.took.map(millis))
            .bind(cut(c.method, MAX_LOGGED_METHOD))
            .bind(cut(c.path, MAX_LOGGED_PATH))
            .bind(c.status.map(i64::from))
            .bind(c.upstream.map(i64::from))
            .bind(c.secret)
            .bind(cut(c.error, MAX_WORD))
            .execute(&mut *tx)
            .await?;
            if let Attempt::Request(request) = &event.what
                && let Some(secret) = request.secret
            {
                secret_audit::add(&mut tx, event, secret, request).await?;
            }
        }
        Ok(tx.commit().await?)
    }

    /// One page of a sandbox's network log, newest first, and whether there is more.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn network_log_list(
        &self,
        sandbox: SandboxId,
        filter: &NetworkFilter,
    ) -> Result<(Vec<NetworkRow>, bool), StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new("SELECT * FROM network_log WHERE sandbox = ");
        query.push_bind(sandbox.to_string()).push(" AND");
        push_kinds(&mut query, &filter.kinds);
        if let Some(verdict) = filter.verdict {
            query.push(" AND verdict = ").push_bind(verdict.as_str());
        }
        match filter.before {
            Some(NetworkBefore::Row(id)) => drop(query.push(" AND seq < ").push_bind(id)),
            Some(NetworkBefore::Time(at)) => drop(query.push(" AND at < ").push_bind(at.as_microsecond())),
            None => {}
        }
        if let Some(since) = filter.since {
            query.push(" AND at >= ").push_bind(since.as_microsecond());
        }
        query.push(" ORDER BY seq DESC LIMIT ").push_bind(i64::from(filter.limit) + 1);
        let rows = query.build().fetch_all(&self.read).await?;
        let mut rows = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        let more = rows.len() > filter.limit as usize;
        rows.truncate(filter.limit as usize);
        Ok((rows, more))
    }

    /// The sandboxes that have more rows of these kinds than are kept.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn network_log_crowded(
        &self,
        kinds: &[NetworkKind],
        keep: u32,
    ) -> Result<Vec<SandboxId>, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new("SELECT sandbox FROM network_log WHERE");
        push_kinds(&mut query, kinds);
        query.push(" GROUP BY sandbox HAVING COUNT(*) > ").push_bind(i64::from(keep));
        let ids: Vec<String> = query.build_query_scalar().fetch_all(&self.read).await?;
        Ok(ids.iter().filter_map(|id| id.parse().ok()).collect())
    }

    /// Removes at most [`PRUNE_STEP`] rows of these kinds beyond a sandbox's newest `keep`, and says how many it removed.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn network_log_prune(
        &self,
        sandbox: SandboxId,
        kinds: &[NetworkKind],
        keep: u32,
    ) -> Result<u32, StoreError> {
        let mut query = QueryBuilder::<Sqlite>::new(
            "DELETE FROM network_log WHERE seq IN (SELECT seq FROM network_log WHERE",
        );
        push_kinds(&mut query, kinds);
        query.push(" AND sandbox = ").push_bind(sandbox.to_string());
        query.push(" ORDER BY seq DESC LIMIT ").push_bind(i64::from(PRUNE_STEP));
        query.push(" OFFSET ").push_bind(i64::from(keep)).push(")");
        let mut tx = self.begin().await?;
        let done = query.build().execute(&mut *tx).await?;
        tx.commit().await?;
        Ok(u32::try_from(done.rows_affected()).unwrap_or(PRUNE_STEP))
    }

    /// Removes at most [`PRUNE_STEP`] of the oldest rows, those from before `before`, and says how many it removed.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn network_log_prune_old(&self, before: Timestamp) -> Result<u32, StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query(
            "DELETE FROM network_log WHERE seq IN (SELECT seq FROM (SELECT seq, at FROM network_log ORDER BY seq \
             LIMIT $1) AS oldest WHERE at < $2)",
        )
        .bind(i64::from(PRUNE_STEP))
        .bind(before.as_microsecond())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(u32::try_from(done.rows_affected()).unwrap_or(PRUNE_STEP))
    }
}

fn push_kinds(query: &mut QueryBuilder<Sqlite>, kinds: &[NetworkKind]) {
    query.push(" kind IN (''");
    for kind in kinds {
        query.push(", ").push_bind(kind.as_str());
    }
    query.push(")");
}
