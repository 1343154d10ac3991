-- Who did what, when, and how it ended. Rows are added in order and removed from the old end only, so that the numbers
-- in seq have no gaps and their range is their count.
CREATE TABLE activity (
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    team TEXT NOT NULL,
    actor TEXT,
    category TEXT NOT NULL,
    action TEXT NOT NULL,
    error TEXT,
    sandbox TEXT,
    sandbox_name TEXT,
    template TEXT,
    duration_ms BIGINT,
    metadata TEXT NOT NULL,
    searched TEXT NOT NULL,
    created_at BIGINT NOT NULL
);

CREATE INDEX activity_by_team ON activity (team, created_at);
CREATE INDEX activity_by_sandbox ON activity (sandbox, created_at);
