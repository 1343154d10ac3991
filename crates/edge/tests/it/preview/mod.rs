//! Previews: the order of the answers, what a guest gets to see, and how bytes pass.

mod access;
mod bytes;
mod guest;
mod sessions;

use std::sync::Arc;

use domain::PreviewAccess::{Private, Public};

use crate::support::{Answer, Sandbox, World};

const PORT: u16 = 3000;

/// A request for the preview of [`PORT`]; `rest` are further header lines, then the body after an empty line.
fn request(sandbox: &Sandbox, method: &str, target: &str, rest: &str) -> String {
    let rest = if rest.contains("\r\n\r\n") { rest.to_owned() } else { format!("{rest}\r\n") };
    let host = sandbox.preview_host(PORT);
    format!("{method} {target} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{rest}")
}

async fn send(world: &World, sandbox: &Sandbox, method: &str, target: &str, rest: &str) -> Answer {
    world.raw(request(sandbox, method, target, rest)).await
}

/// A sandbox whose server answers every request with the head it saw, without its body.
fn mirror(world: &World) -> Arc<Sandbox> {
    world.raw_sandbox(|mut stream| async move {
        use tokio::io::AsyncWriteExt;
        let head = crate::support::read_head(&mut stream).await;
        let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{head}", head.len());
        let _ = stream.write_all(answer.as_bytes()).await;
    })
}

/// The same with a private port of generation 1, and a token for it.
fn private_mirror(world: &World) -> (Arc<Sandbox>, String) {
    let sandbox = mirror(world);
    sandbox.publish(PORT, Some(Private), 1);
    let token = sandbox.preview_token(PORT, 1, "never");
    (sandbox, token)
}

fn public_mirror(world: &World) -> Arc<Sandbox> {
    let sandbox = mirror(world);
    sandbox.publish(PORT, Some(Public), 1);
    sandbox
}
