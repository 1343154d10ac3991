//! `GET /sandboxes`.

use http::StatusCode;
use serde_json::Value;

use super::Platform;

async fn names(p: &Platform, query: &str) -> Vec<String> {
    let answer = p.get(&format!("/sandboxes{query}")).await;
    assert_eq!(answer.status, StatusCode::OK, "{query}: {:?}", answer.body);
    let rows = answer.json();
    let rows: Vec<Value> = rows.as_array().unwrap().clone();
    for row in &rows {
        for absent in ["access_token", "secrets", "routing_hint"] {
            assert!(row.get(absent).is_none(), "{absent} in a list");
        }
        assert!(row["metadata"].is_object());
    }
    rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn filters_sort_and_pages() {
    let p = Platform::new().await;
    assert_eq!(names(&p, "").await.len(), 0);
    p.sandbox(r#"{"name":"b","metadata":{"env":"prod","a b.c":"1+1=2&"}}"#).await;
    p.sandbox(r#"{"name":"a","metadata":{"env":"prod"}}"#).await;
    let id = p.sandbox(r#"{"name":"C"}"#).await["id"].as_str().unwrap().to_owned();
    p.post(&format!("/sandboxes/{id}/pause")).await;

    assert_eq!(names(&p, "").await, ["C", "a", "b"], "newest first");
    assert_eq!(names(&p, "?order=asc").await, ["b", "a", "C"]);
    assert_eq!(names(&p, "?sort=name&order=asc").await, ["C", "a", "b"]);
    assert_eq!(names(&p, "?sort=status&order=desc").await[0], "C");
    assert_eq!(names(&p, "?metadata.env=prod").await, ["a", "b"]);
    assert_eq!(names(&p, "?metadata%2Eenv=prod&metadata.a%20b.c=1%2B1%3D2%26").await, ["b"]);
    assert_eq!(names(&p, "?metadata.env=prod&metadata.a+b.c=1%2B1%3D2%26").await, ["b"]);
    assert_eq!(names(&p, "?metadata.env=dev").await.len(), 0);
    assert_eq!(names(&p, "?q=c").await, ["C"]);
    assert_eq!(names(&p, "?status=paused").await, ["C"]);
    assert_eq!(names(&p, "?status=paused,active").await.len(), 3);
    assert_eq!(names(&p, "?status=paused%2Cresuming").await, ["C"]);
    assert_eq!(names(&p, "?status=migrating").await.len(), 0);
    assert_eq!(names(&p, "?status=deleted").await.len(), 0);
    assert_eq!(names(&p, "?limit=1&offset=1").await, ["a"]);
    assert_eq!(names(&p, "?offset=2").await, ["b"]);
    assert_eq!(names(&p, "?limit=100000").await.len(), 3);
    assert_eq!(p.get("/sandboxes?limit=1&status=active").await.headers["x-total-count"], "2");
    assert_eq!(p.get("/sandboxes").await.headers["x-total-count"], "3");
    assert_eq!(names(&p, "?something=else").await.len(), 3);
}

#[tokio::test]
async fn bad_queries() {
    let p = Platform::new().await;
    for bad in [
        "metadata.a=1&metadata.a=2",
        "metadata.=1",
        "metadata.superserve.x=1",
        "status=Active",
        "status=",
        "status=active,",
        "sort=id",
        "order=up",
        "limit=0",
        "limit=x",
        "offset=-1",
        "q=%ff",
    ] {
        let answer = p.get(&format!("/sandboxes?{bad}")).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (StatusCode::BAD_REQUEST, "bad_request"),
            "{bad}"
        );
    }
}
