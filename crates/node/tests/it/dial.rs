//! Streams to ports inside a sandbox.

use domain::{Code, PreviewPort, SandboxId};
use node::Host;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::bed::Bed;

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_port_is_reached_and_nothing_of_the_way_is_left() {
    let bed = Bed::new().await;
    let spec = bed.create().await;
    let port = PreviewPort::new(8000).unwrap();
    let code = |result: Result<driver::BoxStream, domain::Problem>| result.map(drop).unwrap_err().code;
    assert_eq!(code(bed.node.dial(spec.id, port).await), Code::NotFound, "nothing listens");
    assert_eq!(code(bed.node.dial(SandboxId::new(), port).await), Code::SandboxUnavailable);
    bed.sh(spec.id, "mkdir -p /tmp/www && echo hello >/tmp/www/x && busybox httpd -p 8000 -h /tmp/www").await;
    let before = open_descriptors();
    for _ in 0..50 {
        let mut stream = bed.node.dial(spec.id, port).await.map_err(|problem| problem.chain()).unwrap();
        stream.write_all(b"GET /x HTTP/1.0\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("hello\n"), "{answer}");
        assert_eq!(code(bed.node.dial(spec.id, PreviewPort::new(8001).unwrap()).await), Code::NotFound);
    }
    // Given up half-way.
    for _ in 0..50 {
        let dialling = bed.node.dial(spec.id, port);
        let _given_up = tokio::time::timeout(std::time::Duration::from_micros(50), dialling).await;
    }
    for _ in 0..100 {
        if open_descriptors() <= before {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert!(open_descriptors() <= before, "{} descriptors, {before} before", open_descriptors());
    // Another sandbox has ports of its own, and a deleted one has none.
    let other = bed.create().await;
    assert_eq!(code(bed.node.dial(other.id, port).await), Code::NotFound);
    bed.node.destroy(spec.id).await.map_err(|problem| problem.chain()).unwrap();
    assert_eq!(code(bed.node.dial(spec.id, port).await), Code::SandboxUnavailable);
    bed.finish().await;
}
