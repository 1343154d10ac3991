//! Many callers at once, on the same sandboxes.

use serde_json::json;

use crate::platform;

#[tokio::test]
async fn fifty_mixed_callers_get_documented_answers() {
    let Some(p) = platform().await else { return };
    let mut sandboxes = Vec::new();
    for n in 0..3 {
        sandboxes.push(p.create(json!({"name": format!("mix-{n}")})).await);
    }
    let calls = (0..50).map(|n| {
        let (p, (id, token)) = (&p, &sandboxes[n % 3]);
        async move {
            let path = |verb: &str| format!("/sandboxes/{id}/{verb}");
            let (what, answer, accepted): (_, _, &[u16]) = match n % 6 {
                0 | 1 => ("pause", p.rest("POST", &path("pause"), None).await, &[204, 202, 404, 409]),
                2 => ("resume", p.rest("POST", &path("resume"), None).await, &[200, 404, 409]),
                3 => ("activate", p.rest("POST", &path("activate"), None).await, &[200, 404, 409]),
                4 => ("exec", p.exec(id, token, "echo hi").await, &[200, 401, 404, 502, 503]),
                _ if n > 40 => {
                    ("delete", p.rest("DELETE", &format!("/sandboxes/{id}"), None).await, &[204, 404, 409])
                }
                _ => ("get", p.rest("GET", &format!("/sandboxes/{id}"), None).await, &[200, 404]),
            };
            assert!(accepted.contains(&answer.status), "{what}: {answer:?}");
            if what == "exec" && answer.status == 200 {
                assert_eq!(answer.body["stdout"], "hi\n");
            }
        }
    });
    futures_util::future::join_all(calls).await;
    // Whatever the mix did, what is left works or is gone.
    for (id, _) in &sandboxes {
        let answer = p.rest("POST", &format!("/sandboxes/{id}/activate"), None).await;
        match answer.status {
            200 => {
                let token = answer.body["access_token"].as_str().unwrap();
                assert_eq!(p.run(id, token, "echo alive").await, "alive\n");
            }
            404 => {}
            other => panic!("{other}: {answer:?}"),
        }
    }
    let listed = p.rest("GET", "/sandboxes", None).await.body.as_array().unwrap().len();
    assert_eq!(p.remains().machines, listed);
}

#[tokio::test]
async fn parallel_activates_share_one_resume() {
    let Some(p) = platform().await else { return };
    let (id, _) = p.create(json!({})).await;
    assert_eq!(p.rest("POST", &format!("/sandboxes/{id}/pause"), None).await.status, 204);
    let path = format!("/sandboxes/{id}/activate");
    let answers = futures_util::future::join_all((0..10).map(|_| p.rest("POST", &path, None))).await;
    for answer in &answers {
        assert_eq!(answer.status, 200, "{answer:?}");
        let token = answer.body["access_token"].as_str().unwrap();
        assert_eq!(p.exec(&id, token, "true").await.status, 200, "every token handed out works");
    }
}
