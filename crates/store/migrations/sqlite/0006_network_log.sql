-- What sandboxes did on the network; rows go with their sandbox. Which columns are set depends on the kind.
CREATE TABLE network_log (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    at BIGINT NOT NULL,
    kind TEXT NOT NULL,
    verdict TEXT,
    match_rule TEXT,
    host TEXT,
    dst_ip TEXT,
    dst_port BIGINT,
    protocol TEXT,
    sent BIGINT,
    received BIGINT,
    packets BIGINT,
    took_ms BIGINT,
    method TEXT,
    path TEXT,
    status BIGINT,
    upstream_status BIGINT,
    secret TEXT,
    error TEXT
);

CREATE INDEX network_log_by_sandbox ON network_log (sandbox, seq, kind);
