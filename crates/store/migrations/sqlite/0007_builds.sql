-- How templates are made. A template that was imported has no spec and no builds.
ALTER TABLE templates ADD COLUMN spec TEXT;

CREATE TABLE template_builds (
    id TEXT PRIMARY KEY NOT NULL,
    template TEXT NOT NULL REFERENCES templates (id) ON DELETE CASCADE,
    team TEXT NOT NULL REFERENCES teams (id),
    status TEXT NOT NULL,
    spec_hash TEXT NOT NULL,
    error TEXT,
    created_at BIGINT NOT NULL,
    started_at BIGINT,
    finalized_at BIGINT
);

CREATE INDEX template_builds_by_template ON template_builds (template, created_at);
CREATE INDEX template_builds_by_status ON template_builds (status);

-- What a step made out of what was below it, by content: the same step over the same layers is not run again.
CREATE TABLE build_cache (
    key TEXT PRIMARY KEY NOT NULL,
    layer TEXT NOT NULL,
    size_bytes BIGINT NOT NULL,
    used_at BIGINT NOT NULL
);
