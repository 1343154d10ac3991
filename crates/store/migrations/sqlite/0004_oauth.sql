-- Programs that asked for an OAuth client id. Anybody may ask: rows without a grant are few and short-lived.
CREATE TABLE oauth_clients (
    id TEXT PRIMARY KEY NOT NULL,
    name TEXT NOT NULL,
    redirect_uris TEXT NOT NULL,
    created_at BIGINT NOT NULL,
    granted_at BIGINT
);

CREATE INDEX oauth_clients_by_age ON oauth_clients (granted_at, created_at);

-- What the holder of a key granted to a client. Codes and tokens are derived from the id and the generation; none is
-- stored. Generation 0 is a code that has not been redeemed; a grant that ends is deleted.
CREATE TABLE oauth_grants (
    id TEXT PRIMARY KEY NOT NULL,
    client TEXT NOT NULL REFERENCES oauth_clients (id) ON DELETE CASCADE,
    api_key TEXT NOT NULL REFERENCES api_keys (id),
    redirect_uri TEXT NOT NULL,
    challenge TEXT NOT NULL,
    resource TEXT NOT NULL,
    generation BIGINT NOT NULL,
    created_at BIGINT NOT NULL,
    rotated_at BIGINT NOT NULL,
    expires_at BIGINT NOT NULL
);

CREATE INDEX oauth_grants_by_key ON oauth_grants (api_key, rotated_at);
CREATE INDEX oauth_grants_by_client ON oauth_grants (client);
