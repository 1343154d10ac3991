-- A snapshot outlives the template it came from, and so does a sandbox made of it: the column loses its NOT NULL.
DROP INDEX sandboxes_by_template;
ALTER TABLE sandboxes ADD COLUMN made_from TEXT REFERENCES templates (id);
UPDATE sandboxes SET made_from = template;
ALTER TABLE sandboxes DROP COLUMN template;
ALTER TABLE sandboxes RENAME COLUMN made_from TO template;
CREATE INDEX sandboxes_by_template ON sandboxes (template);

-- The saved snapshot a sandbox was made from; it may be gone.
ALTER TABLE sandboxes ADD COLUMN source_snapshot TEXT;

-- Saved states of sandboxes. They outlive the sandbox. One with an idempotency key leaves its row when it is deleted, so
-- that the key stays taken for as long as the sandbox exists; such a row holds nothing else.
CREATE TABLE snapshots (
    id TEXT PRIMARY KEY NOT NULL,
    team TEXT NOT NULL REFERENCES teams (id),
    sandbox TEXT NOT NULL,
    template TEXT REFERENCES templates (id) ON DELETE SET NULL,
    parent TEXT,
    name TEXT,
    status TEXT NOT NULL,
    captured TEXT NOT NULL,
    idempotency_key TEXT,
    vcpu BIGINT NOT NULL,
    memory_mib BIGINT NOT NULL,
    disk_mib BIGINT NOT NULL,
    layers TEXT NOT NULL,
    defaults TEXT NOT NULL,
    network TEXT NOT NULL,
    timeout_seconds BIGINT,
    env TEXT NOT NULL,
    bindings TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    ready_at BIGINT,
    deleted_at BIGINT
);

CREATE INDEX snapshots_by_sandbox ON snapshots (sandbox, created_at);
CREATE INDEX snapshots_by_team ON snapshots (team, status);
CREATE INDEX snapshots_by_template ON snapshots (template);
CREATE UNIQUE INDEX snapshots_by_key ON snapshots (sandbox, idempotency_key) WHERE idempotency_key IS NOT NULL;
