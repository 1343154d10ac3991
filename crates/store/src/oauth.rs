//! OAuth clients and grants. Codes and tokens are derived elsewhere; what is kept is which generation of a grant is the
//! current one. A grant that ends is deleted, and so is a client that nobody granted anything for long.

use jiff::Timestamp;
use sqlx::Row;
use sqlx::sqlite::SqliteRow;
use uuid::Uuid;

use crate::{KeyRow, Store, StoreError, columns};

/// A program that registered itself. Everything in it was chosen by a stranger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OauthClientRow {
    /// Its client id.
    pub id: Uuid,
    /// What it calls itself.
    pub name: String,
    /// Where codes may be sent.
    pub redirect_uris: Vec<String>,
    /// When it registered.
    pub created_at: Timestamp,
    /// When somebody last granted it something.
    pub granted_at: Option<Timestamp>,
}

/// What the holder of a key granted to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OauthGrantRow {
    /// Its id; part of its code and its tokens.
    pub id: Uuid,
    /// To whom.
    pub client: Uuid,
    /// Whose authority.
    pub api_key: Uuid,
    /// Where the code was sent.
    pub redirect_uri: String,
    /// PKCE: SHA-256 of the verifier, as base64url.
    pub challenge: String,
    /// The audience of its tokens.
    pub resource: String,
    /// 0 until the code is redeemed; then counts the pairs of tokens.
    pub generation: u32,
    /// When it was granted.
    pub created_at: Timestamp,
    /// When the newest pair of tokens was given out.
    pub rotated_at: Timestamp,
    /// When the code, or the newest refresh token, ends.
    pub expires_at: Timestamp,
}

/// A grant that can be used, with the key it stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OauthGrant {
    /// The grant.
    pub grant: OauthGrantRow,
    /// A key that works.
    pub key: KeyRow,
}

/// A grant as people see it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OauthGrantSummary {
    /// The grant and its key.
    pub of: OauthGrant,
    /// What the client calls itself.
    pub client_name: String,
}

const GRANT: &str = "SELECT g.id, g.client, g.api_key, g.redirect_uri, g.challenge, g.resource, g.generation, \
     g.created_at, g.rotated_at, g.expires_at, c.name AS client_name, k.id AS key_id, k.team AS key_team, \
     k.name AS key_name, k.prefix AS key_prefix, k.created_at AS key_created_at, \
     k.last_used_at AS key_last_used_at \
     FROM oauth_grants g JOIN api_keys k ON k.id = g.api_key JOIN oauth_clients c ON c.id = g.client \
     WHERE k.revoked_at IS NULL AND g.expires_at > $1";

fn read_client(row: &SqliteRow) -> Result<OauthClientRow, StoreError> {
    Ok(OauthClientRow {
        id: columns::parsed(row, "id")?,
        name: row.try_get("name")?,
        redirect_uris: columns::list(row, "redirect_uris")?,
        created_at: columns::time(row, "created_at")?,
        granted_at: columns::maybe_time(row, "granted_at")?,
    })
}

fn read_grant(row: &SqliteRow) -> Result<OauthGrantSummary, StoreError> {
    let grant = OauthGrantRow {
        id: columns::parsed(row, "id")?,
        client: columns::parsed(row, "client")?,
        api_key: columns::parsed(row, "api_key")?,
        redirect_uri: row.try_get("redirect_uri")?,
        challenge: row.try_get("challenge")?,
        resource: row.try_get("resource")?,
        generation: columns::number(row, "generation")?,
        created_at: columns::time(row, "created_at")?,
        rotated_at: columns::time(row, "rotated_at")?,
        expires_at: columns::time(row, "expires_at")?,
    };
    let key = KeyRow {
        id: columns::parsed(row, "key_id")?,
        team: columns::parsed(row, "key_team")?,
        name: row.try_get("key_name")?,
        prefix: row.try_get("key_prefix")?,
        created_at: columns::time(row, "key_created_at")?,
        revoked_at: None,
        last_used_at: columns::maybe_time(row, "key_last_used_at")?,
    };
    Ok(OauthGrantSummary { of: OauthGrant { grant, key }, client_name: row.try_get("client_name")? })
}

fn select(condition: &str) -> sqlx::AssertSqlSafe<String> {
    sqlx::AssertSqlSafe(format!("{GRANT} {condition}"))
}

impl Store {
    /// Adds a client. Of those that were never granted anything at most `keep` stay, the newest.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn oauth_client_add(&self, client: &OauthClientRow, keep: u32) -> Result<(), StoreError> {
        let mut tx = self.begin().await?;
        sqlx::query(
            "INSERT INTO oauth_clients (id, name, redirect_uris, created_at) VALUES ($1, $2, $3, $4)",
        )
        .bind(client.id.to_string())
        .bind(&client.name)
        .bind(columns::list_text(&client.redirect_uris))
        .bind(client.created_at.as_microsecond())
        .execute(&mut *tx)
        .await?;
        sqlx::query(
            "DELETE FROM oauth_clients WHERE id IN (SELECT id FROM oauth_clients WHERE granted_at IS NULL \
             ORDER BY created_at DESC, id LIMIT 1000 OFFSET $1)",
        )
        .bind(i64::from(keep))
        .execute(&mut *tx)
        .await?;
        Ok(tx.commit().await?)
    }

    /// The client with this id.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn oauth_client_find(&self, id: Uuid) -> Result<Option<OauthClientRow>, StoreError> {
        let row = sqlx::query(
            "SELECT id, name, redirect_uris, created_at, granted_at FROM oauth_clients WHERE id = $1",
        )
        .bind(id.to_string())
        .fetch_optional(&self.read)
        .await?;
        row.as_ref().map(read_client).transpose()
    }

    /// Adds a grant, unless its key or its client has gone; says whether it did. A key has at most `most` grants: beyond
    /// that the one that was used least lately ends.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn oauth_grant_add(&self, grant: &OauthGrantRow, most: u32) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let added = sqlx::query(
            "INSERT INTO oauth_grants (id, client, api_key, redirect_uri, challenge, resource, generation, created_at, \
             rotated_at, expires_at) SELECT $1, c.id, k.id, $4, $5, $6, $7, $8, $9, $10 FROM oauth_clients c, api_keys k \
             WHERE c.id = $2 AND k.id = $3 AND k.revoked_at IS NULL",
        )
        .bind(grant.id.to_string())
        .bind(grant.client.to_string())
        .bind(grant.api_key.to_string())
        .bind(&grant.redirect_uri)
        .bind(&grant.challenge)
        .bind(&grant.resource)
        .bind(i64::from(grant.generation))
        .bind(grant.created_at.as_microsecond())
        .bind(grant.rotated_at.as_microsecond())
        .bind(grant.expires_at.as_microsecond())
        .execute(&mut *tx)
        .await?;
        if added.rows_affected() != 1 {
            return Ok(false);
        }
        sqlx::query("UPDATE oauth_clients SET granted_at = $2 WHERE id = $1")
            .bind(grant.client.to_string())
            .bind(grant.created_at.as_microsecond())
            .execute(&mut *tx)
            .await?;
        sqlx::query(
            "DELETE FROM oauth_grants WHERE id IN (SELECT id FROM oauth_grants WHERE api_key = $1 \
             ORDER BY rotated_at DESC, id LIMIT 1000 OFFSET $2)",
        )
        .bind(grant.api_key.to_string())
        .bind(i64::from(most))
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(true)
    }

    /// The grant with this id, if neither it nor its key has ended.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn oauth_grant_find(&self, id: Uuid, now: Timestamp) -> Result<Option<OauthGrant>, StoreError> {
        let row = sqlx::query(select("AND g.id = $2"))
            .bind(now.as_microsecond())
            .bind(id.to_string())
            .fetch_optional(&self.read)
            .await?;
        Ok(row.as_ref().map(read_grant).transpose()?.map(|summary| summary.of))
    }

    /// All grants that have not ended and were redeemed, oldest first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn oauth_grant_list(&self, now: Timestamp) -> Result<Vec<OauthGrantSummary>, StoreError> {
        let rows = sqlx::query(select("AND g.generation > 0 ORDER BY g.created_at, g.id"))
            .bind(now.as_microsecond())
            .fetch_all(&self.read)
            .await?;
        rows.iter().map(read_grant).collect()
    }

    /// Goes from a generation to the next one; `false` when the grant has ended or somebody else was first.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn oauth_grant_rotate(
        &self,
        id: Uuid,
        from: u32,
        now: Timestamp,
        expires_at: Timestamp,
    ) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query(
            "UPDATE oauth_grants SET generation = generation + 1, rotated_at = $3, expires_at = $4 \
             WHERE id = $1 AND generation = $2 AND expires_at > $3 \
             AND api_key IN (SELECT id FROM api_keys WHERE revoked_at IS NULL)",
        )
        .bind(id.to_string())
        .bind(i64::from(from))
        .bind(now.as_microsecond())
        .bind(expires_at.as_microsecond())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(done.rows_affected() == 1)
    }

    /// Ends a grant; `false` when there is none.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn oauth_grant_end(&self, id: Uuid) -> Result<bool, StoreError> {
        let mut tx = self.begin().await?;
        let done = sqlx::query("DELETE FROM oauth_grants WHERE id = $1")
            .bind(id.to_string())
            .execute(&mut *tx)
            .await?;
        tx.commit().await?;
        Ok(done.rows_affected() == 1)
    }

    /// Removes grants that have ended, clients that registered before `unused` and were never granted anything, and
    /// clients without a grant that were last granted something before `idle`. Says how many rows went.
    ///
    /// # Errors
    /// When the database fails.
    pub async fn oauth_sweep(
        &self,
        now: Timestamp,
        unused: Timestamp,
        idle: Timestamp,
    ) -> Result<u64, StoreError> {
        let mut tx = self.begin().await?;
        let grants = sqlx::query(
            "DELETE FROM oauth_grants WHERE expires_at <= $1 \
             OR api_key IN (SELECT id FROM api_keys WHERE revoked_at IS NOT NULL)",
        )
        .bind(now.as_microsecond())
        .execute(&mut *tx)
        .await?;
        let clients = sqlx::query(
            "DELETE FROM oauth_clients WHERE ((granted_at IS NULL AND created_at < $1) OR granted_at < $2) \
             AND id NOT IN (SELECT client FROM oauth_grants)",
        )
        .bind(unused.as_microsecond())
        .bind(idle.as_microsecond())
        .execute(&mut *tx)
        .await?;
        tx.commit().await?;
        Ok(grants.rows_affected() + clients.rows_affected())
    }
}
