-- Ports of sandboxes that are, or once were, published. A port that was taken back keeps its row with access NULL, so
-- that its generation never starts again and an old token never becomes valid again.
CREATE TABLE preview_ports (
    sandbox TEXT NOT NULL REFERENCES sandboxes (id) ON DELETE CASCADE,
    port BIGINT NOT NULL,
    access TEXT,
    generation BIGINT NOT NULL,
    PRIMARY KEY (sandbox, port)
);
