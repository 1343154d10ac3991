-- Credentials. The value is sealed with a key of its own, which is sealed with a key that is not in this database; both are
-- gone when the secret is deleted. The row stays, because bindings to it stay.
CREATE TABLE secrets (
    id TEXT PRIMARY KEY NOT NULL,
    team TEXT NOT NULL REFERENCES teams (id),
    name TEXT NOT NULL,
    provider TEXT,
    auth TEXT NOT NULL,
    hosts TEXT NOT NULL,
    sealed_by TEXT,
    sealed_key BLOB,
    sealed_value BLOB,
    created_at BIGINT NOT NULL,
    updated_at BIGINT NOT NULL,
    last_used_at BIGINT,
    deleted_at BIGINT
);

CREATE UNIQUE INDEX secrets_by_name ON secrets (team, name) WHERE deleted_at IS NULL;

-- Stand-ins in sandboxes. A detached one stays as long as its sandbox, so that it can be recognised and refused.
CREATE TABLE secret_bindings (
    id TEXT PRIMARY KEY NOT NULL,
    sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    secret TEXT NOT NULL REFERENCES secrets (id),
    env_key TEXT NOT NULL,
    stand_in TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL,
    detached_at BIGINT
);

CREATE UNIQUE INDEX secret_bindings_by_key ON secret_bindings (sandbox, env_key) WHERE detached_at IS NULL;
CREATE INDEX secret_bindings_by_secret ON secret_bindings (secret);

-- Requests in which a stand-in was found. They outlive the sandbox.
CREATE TABLE secret_audit (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    secret TEXT NOT NULL REFERENCES secrets (id) ON DELETE CASCADE,
    sandbox TEXT NOT NULL,
    at BIGINT NOT NULL,
    method TEXT NOT NULL,
    host TEXT NOT NULL,
    path TEXT NOT NULL,
    status BIGINT NOT NULL,
    upstream_status BIGINT,
    latency_ms BIGINT NOT NULL,
    error TEXT
);

CREATE INDEX secret_audit_by_secret ON secret_audit (secret, seq);

ALTER TABLE activity ADD COLUMN secret TEXT;
ALTER TABLE activity ADD COLUMN secret_name TEXT;
