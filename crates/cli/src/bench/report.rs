//! The figures of one run, as a table or as JSON.

use std::io::IsTerminal;
use std::time::Duration;

use client::{Client, ClientError};
use serde::Serialize;

use crate::{out, table};

/// Everything measured.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// Version of this binary.
    version: &'static str,
    base_url: String,
    /// Isolation engine, if the platform says so.
    engine: Option<String>,
    /// Processors of the machine that measures.
    cpus: usize,
    pub(crate) rows: Vec<Row>,
}

/// One quantity: its distribution over `n` samples, or why there is none.
#[derive(Debug, Serialize)]
pub(crate) struct Row {
    name: String,
    unit: &'static str,
    n: usize,
    p50: Option<f64>,
    p95: Option<f64>,
    min: Option<f64>,
    max: Option<f64>,
    /// What the median should keep to, in the row's unit.
    #[serde(skip_serializing_if = "Option::is_none")]
    budget: Option<&'static str>,
    /// Why the figures are absent, or how they are to be read.
    #[serde(skip_serializing_if = "Option::is_none")]
    note: Option<String>,
}

impl Row {
    pub(crate) fn samples(name: impl Into<String>, unit: &'static str, mut samples: Vec<f64>) -> Self {
        // Finer than a thousandth is noise.
        samples.iter_mut().for_each(|sample| *sample = (*sample * 1000.0).round() / 1000.0);
        samples.sort_by(f64::total_cmp);
        let at = |quantile: f64| nearest_rank(&samples, quantile);
        Self {
            name: name.into(),
            unit,
            n: samples.len(),
            p50: at(0.5),
            p95: at(0.95),
            min: samples.first().copied(),
            max: samples.last().copied(),
            budget: None,
            note: samples.is_empty().then(|| "no samples".to_owned()),
        }
    }

    pub(crate) fn absent(name: impl Into<String>, unit: &'static str, why: impl Into<String>) -> Self {
        Self { note: Some(why.into()), ..Self::samples(name, unit, Vec::new()) }
    }

    pub(crate) fn times(name: impl Into<String>, times: Result<Vec<Duration>, ClientError>) -> Self {
        match times {
            Ok(times) => Self::samples(name, "ms", times.into_iter().map(millis).collect()),
            Err(error) => Self::absent(name, "ms", super::reason(&error)),
        }
    }

    pub(crate) fn note(mut self, note: impl Into<String>) -> Self {
        self.note = Some(note.into());
        self
    }

    pub(crate) fn budget(mut self, budget: &'static str) -> Self {
        self.budget = Some(budget);
        self
    }

    pub(crate) fn p50(&self) -> Option<f64> {
        self.p50
    }
}

pub(crate) fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// The smallest sample that at least the given share of samples does not exceed.
fn nearest_rank(sorted: &[f64], quantile: f64) -> Option<f64> {
    let count = sorted.len();
    let rank = (1..=count).find(|rank| *rank as f64 >= quantile * count as f64)?;
    sorted.get(rank - 1).copied()
}

impl Report {
    pub(crate) async fn new(client: &Client) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            base_url: client.base_url().to_owned(),
            engine: client.descriptor().await.ok().map(|descriptor| out::printable(&descriptor.engine)),
            cpus: std::thread::available_parallelism().map_or(0, usize::from),
            rows: Vec::new(),
        }
    }

    /// Tells a waiting person what is going on.
    pub(crate) fn say(&self, what: &str) {
        if std::io::stderr().is_terminal() {
            out::note(&format!("measuring: {what} …"));
        }
    }

    pub(crate) fn table(&self) -> String {
        let number = |value: Option<f64>| value.map_or_else(|| "—".to_owned(), |value| format!("{value:.2}"));
        let row = |row: &Row| {
            vec![
                row.name.clone(),
                row.unit.to_owned(),
                row.n.to_string(),
                number(row.p50),
                number(row.p95),
                number(row.min),
                number(row.max),
                row.budget.unwrap_or_default().to_owned(),
                row.note.clone().unwrap_or_default(),
            ]
        };
        let engine = self.engine.as_deref().unwrap_or("unknown");
        let rows: Vec<_> = self.rows.iter().map(row).collect();
        let table =
            table::render(&["PATH", "UNIT", "N", "P50", "P95", "MIN", "MAX", "BUDGET", "NOTE"], &rows);
        format!(
            "superserve {} at {}, engine {engine}, {} CPUs here\n\n{table}",
            self.version, self.base_url, self.cpus
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let row = Row::samples("x", "ms", (1..=20).rev().map(f64::from).collect());
        assert_eq!((row.n, row.p50, row.p95), (20, Some(10.0), Some(19.0)));
        assert_eq!((row.min, row.max), (Some(1.0), Some(20.0)));
        let one = Row::samples("x", "ms", vec![7.0]);
        assert_eq!((one.p50, one.p95), (Some(7.0), Some(7.0)));
    }

    #[test]
    fn absent_figures_are_null_with_a_reason() {
        let row = Row::absent("x", "MiB", "not on this machine");
        expect_test::expect![[
            r#"{"name":"x","unit":"MiB","n":0,"p50":null,"p95":null,"min":null,"max":null,"note":"not on this machine"}"#
        ]]
        .assert_eq(&serde_json::to_string(&row).unwrap());
    }
}
