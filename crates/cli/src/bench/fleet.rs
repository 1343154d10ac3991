//! The sandboxes of one run: all carry the run's tag, so that also those whose creation was never answered are found
//! and deleted.

use std::collections::BTreeMap;
use std::time::Duration;

use client::{Client, ClientError, CreateSandbox, ListFilter};
use futures_util::future::try_join_all;
use tokio::time::{Instant, sleep};

const TAG: &str = "bench-run";
/// Longest time for the clean-up: deletes wait for transitions by themselves, this bounds the rounds.
const CLEANUP_TIMEOUT: Duration = Duration::from_secs(60);
/// A create that was cut off may still come to life; look again after this.
const SECOND_LOOK: Duration = Duration::from_millis(500);
/// Even a forgotten run ends: the sandboxes pause, and then delete themselves.
const LIFETIME_SECONDS: i64 = 3600;

pub(crate) struct Fleet {
    client: Client,
    template: Option<String>,
    run: String,
}

impl Fleet {
    pub(crate) fn new(client: Client, template: Option<String>) -> Self {
        Self { client, template, run: format!("{:08x}", getrandom::u32().unwrap_or(std::process::id())) }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The tag as the command line takes it.
    pub(crate) fn tag(&self) -> String {
        format!("{TAG}={}", self.run)
    }

    fn metadata(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(TAG.to_owned(), self.run.clone())])
    }

    pub(crate) async fn create(&self) -> Result<String, ClientError> {
        let body = CreateSandbox {
            name: format!("bench-{}", self.run),
            from_template: self.template.clone(),
            metadata: Some(self.metadata()),
            timeout_seconds: Some(LIFETIME_SECONDS),
            auto_delete_seconds: Some(LIFETIME_SECONDS),
            ..CreateSandbox::default()
        };
        Ok(self.client.create_sandbox(&body).await?.item.id)
    }

    pub(crate) async fn delete(&self, id: &str) -> Result<(), ClientError> {
        self.client.delete_sandbox(id).await.map(drop)
    }

    /// Deletes until two looks in a row find nothing.
    pub(crate) async fn delete_all(&self) -> Result<(), ClientError> {
        let filter = ListFilter { metadata: self.metadata(), ..ListFilter::default() };
        let started = Instant::now();
        let mut empty = 0;
        while empty < 2 {
            let found = self.client.list_sandboxes(&filter).await?.items;
            let deletes = found.iter().map(|item| self.client.delete_sandbox(&item.id));
            let result = try_join_all(deletes).await;
            if started.elapsed() > CLEANUP_TIMEOUT {
                return result.map(drop);
            }
            if found.is_empty() {
                empty += 1;
                sleep(SECOND_LOOK).await;
            } else {
                empty = 0;
                result?;
            }
        }
        Ok(())
    }
}
