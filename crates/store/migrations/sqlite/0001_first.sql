-- Times are microseconds since 1970. JSON texts are written and read by this crate alone.
CREATE TABLE teams (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL UNIQUE,
    created_at BIGINT NOT NULL
);

-- Owner of the curated templates; has no keys.
INSERT INTO teams (id, name, created_at) VALUES ('00000000-0000-4000-8000-000000000001', 'system', 0);

CREATE TABLE api_keys (
    id TEXT PRIMARY KEY NOT NULL,
    team TEXT NOT NULL REFERENCES teams (id),
    name TEXT NOT NULL,
    hash TEXT NOT NULL UNIQUE,
    prefix TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    revoked_at BIGINT,
    last_used_at BIGINT
);

CREATE TABLE templates (
    id TEXT PRIMARY KEY NOT NULL,
    team TEXT NOT NULL REFERENCES teams (id),
    name TEXT NOT NULL,
    status TEXT NOT NULL,
    vcpu BIGINT NOT NULL,
    memory_mib BIGINT NOT NULL,
    disk_mib BIGINT NOT NULL,
    defaults TEXT NOT NULL,
    layers TEXT NOT NULL,
    size_bytes BIGINT,
    created_at BIGINT NOT NULL,
    built_at BIGINT,
    error TEXT,
    UNIQUE (team, name)
);

-- A row with state 'deleted' is only there until the host has been cleaned up.
CREATE TABLE sandboxes (
    id TEXT PRIMARY KEY NOT NULL,
    team TEXT NOT NULL REFERENCES teams (id),
    name TEXT NOT NULL,
    name_folded TEXT NOT NULL,
    state TEXT NOT NULL,
    generation BIGINT NOT NULL,
    template TEXT NOT NULL REFERENCES templates (id),
    vcpu BIGINT NOT NULL,
    memory_mib BIGINT NOT NULL,
    disk_mib BIGINT NOT NULL,
    layers TEXT NOT NULL,
    defaults TEXT NOT NULL,
    metadata TEXT NOT NULL,
    env TEXT NOT NULL,
    timeout_seconds BIGINT,
    auto_delete_seconds BIGINT,
    active_since BIGINT,
    auto_delete_at BIGINT,
    preview_access TEXT NOT NULL,
    network TEXT NOT NULL,
    link BIGINT NOT NULL UNIQUE,
    memory_kept BOOLEAN NOT NULL,
    token_epoch BIGINT NOT NULL,
    token_issued_ms BIGINT NOT NULL,
    checkpoint TEXT,
    created_at BIGINT NOT NULL
);

CREATE INDEX sandboxes_by_team ON sandboxes (team, created_at);
CREATE INDEX sandboxes_by_template ON sandboxes (template);

-- The tags of sandboxes.metadata again, one a row, so that any key can be searched for by equality.
CREATE TABLE sandbox_tags (
    sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (sandbox, key)
);
