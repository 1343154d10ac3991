//! The times of the main paths.

use std::time::{Duration, Instant};

use bytes::Bytes;
use client::{Client, ClientError, ExecRequest, SessionEvent};
use futures_util::future::join_all;

use super::fleet::Fleet;
use super::report::{Row, millis};

pub(crate) fn nothing() -> ExecRequest {
    ExecRequest { command: "true".to_owned(), ..ExecRequest::default() }
}

/// Runs `true`, which must succeed for its time to count.
pub(crate) async fn exec(client: &Client, id: &str) -> Result<Duration, ClientError> {
    let started = Instant::now();
    let done = client.exec(id, &nothing()).await?;
    if done.exit_code != 0 {
        return Err(ClientError::Local(format!("`true` exited with {}", done.exit_code)));
    }
    Ok(started.elapsed())
}

/// From the request of a sandbox to the answer of its first command.
async fn create_and_exec(fleet: &Fleet) -> Result<(String, Duration), ClientError> {
    let started = Instant::now();
    let id = fleet.create().await?;
    exec(fleet.client(), &id).await?;
    Ok((id, started.elapsed()))
}

pub(crate) async fn creates(fleet: &Fleet, count: u32) -> Result<Vec<Duration>, ClientError> {
    let mut times = Vec::new();
    for _ in 0..count {
        let (id, time) = create_and_exec(fleet).await?;
        fleet.delete(&id).await?;
        times.push(time);
    }
    Ok(times)
}

/// Each one's time, and the time until the last one was done.
pub(crate) async fn burst(fleet: &Fleet, count: u32) -> [Row; 2] {
    let (each, all) =
        (format!("burst of {count}: create → first exec"), format!("burst of {count}: until the last"));
    let started = Instant::now();
    let results = join_all((0..count).map(|_| create_and_exec(fleet))).await;
    let total = started.elapsed();
    let done: Result<Vec<_>, _> = results.into_iter().collect();
    let rows = match &done {
        Ok(done) => [
            Row::samples(each, "ms", done.iter().map(|(_, time)| millis(*time)).collect()),
            Row::samples(all, "ms", vec![millis(total)]),
        ],
        Err(error) => {
            [Row::absent(each, "ms", super::reason(error)), Row::absent(all, "ms", super::reason(error))]
        }
    };
    let ids = done.iter().flatten().map(|(id, _)| fleet.delete(id));
    // What is left here is found by the clean-up, which reports its failures.
    join_all(ids).await;
    rows
}

pub(crate) async fn execs(client: &Client, id: &str, count: u32) -> Result<Vec<Duration>, ClientError> {
    exec(client, id).await?;
    let mut times = Vec::new();
    for _ in 0..count {
        times.push(exec(client, id).await?);
    }
    Ok(times)
}

/// A command typed into a shell that is open already, until its output is back.
pub(crate) async fn in_session(client: &Client, id: &str, count: u32) -> Result<Vec<Duration>, ClientError> {
    /// Longest wait for one line: a command of a busy machine, not a hang.
    const LINE_LIMIT: Duration = Duration::from_secs(30);
    let shell = ExecRequest { command: "exec sh".to_owned(), ..ExecRequest::default() };
    let session = client.start_session(id, shell, None).await?;
    let (input, mut events) = session.split();
    let mut times = Vec::new();
    // The first one waits for the shell to start, which is not what is measured.
    for _ in 0..=count {
        let started = Instant::now();
        input.write(Bytes::from_static(b"true && echo\n")).await;
        let line = tokio::time::timeout(LINE_LIMIT, events.next()).await;
        match line {
            Ok(Some(Ok(SessionEvent::Stdout(line)))) if line[..] == *b"\n" => times.push(started.elapsed()),
            Ok(Some(Err(error))) => return Err(error),
            _ => return Err(ClientError::Local("the shell in the session did not answer".to_owned())),
        }
    }
    times.remove(0);
    input.close().await;
    // Waits for its end, so that no other measurement shares the sandbox with it.
    let _ = tokio::time::timeout(LINE_LIMIT, events.next()).await;
    Ok(times)
}

/// Until a pause is done, and from asking for a resume to the answer of a command.
pub(crate) async fn pauses(client: &Client, id: &str, count: u32) -> [Row; 2] {
    let (pauses, resumes) = match pause_and_resume(client, id, count).await {
        Ok((pauses, resumes)) => (Ok(pauses), Ok(resumes)),
        Err(error) => (Err(error.clone()), Err(error)),
    };
    [
        Row::times("pause visible", pauses).budget("≤ 10 container, ≤ 100 VM"),
        Row::times("resume → exec", resumes).budget("≤ 10 container, ≤ 60 VM"),
    ]
}

async fn pause_and_resume(
    client: &Client,
    id: &str,
    count: u32,
) -> Result<(Vec<Duration>, Vec<Duration>), ClientError> {
    let (mut pauses, mut resumes) = (Vec::new(), Vec::new());
    for _ in 0..count {
        let started = Instant::now();
        client.pause_sandbox(id).await?;
        pauses.push(started.elapsed());
        let started = Instant::now();
        client.resume_sandbox(id).await?;
        exec(client, id).await?;
        resumes.push(started.elapsed());
    }
    Ok((pauses, resumes))
}
