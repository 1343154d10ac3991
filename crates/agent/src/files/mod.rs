//! `/files` (`spec/data-plane.md` §6). Every touch of the file system happens on a pool thread with the rights of the
//! sandbox's default user, never on the thread that serves.

mod archive;
mod fault;
mod listing;
mod query;
mod range;
mod read;
mod sniff;
mod write;

use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use http::{StatusCode, header};

use crate::agent::Agent;
use crate::reply::{Refusal, Response};
use crate::route::{Request, configured};
use crate::sys::identity::Identity;
use crate::users;
use query::{Format, Query};
use read::Opened;

/// `GET` and `HEAD`.
pub(crate) async fn get(agent: &Rc<Agent>, request: Request) -> Result<Response, Refusal> {
    let who = identity(agent).await?;
    let Query { path, format } = query::parse(request.uri().query())?;
    let opened = {
        let path = path.clone();
        agent.files.run_as(&who, move || read::open(&path)).await
    };
    match (opened.map_err(|error| fault::refusal(&path, &error))?, format) {
        (Opened::File(file), _) => read::answer(agent, &who, path, file, &request).await,
        (Opened::Special, _) => Err(Refusal::bad_request("path is neither a file nor a directory")),
        (Opened::Directory { .. }, None) => Err(Refusal::bad_request(
            "path is a directory; add format=zip or format=json to get its contents",
        )),
        (Opened::Directory { .. }, Some(Format::Unknown)) => {
            Err(Refusal::bad_request("path is a directory and format must be zip or json"))
        }
        (Opened::Directory { linked: true }, Some(Format::Zip)) => {
            Err(Refusal::bad_request("path is a symbolic link to a directory; name the directory itself"))
        }
        (Opened::Directory { .. }, Some(Format::Zip)) => archive::answer(agent, &who, path),
        (Opened::Directory { .. }, Some(Format::Json)) => listing::answer(agent, &who, path).await,
    }
}

/// `POST`.
pub(crate) async fn post(agent: &Rc<Agent>, request: Request) -> Result<Response, Refusal> {
    let (head, mut body) = request.into_parts();
    let stored = async {
        let who = identity(agent).await?;
        let Query { path, .. } = query::parse(head.uri.query())?;
        write::answer(agent, &who, path, &head.headers, &mut body).await
    };
    let stored = stored.await;
    // Who waits for leave to send needs no more than the answer; who announced too much is cut off.
    let waits = head.headers.contains_key(header::EXPECT);
    if stored.as_ref().is_err_and(|refusal| refusal.status != StatusCode::PAYLOAD_TOO_LARGE) && !waits {
        write::discard(body).await;
    }
    stored
}

/// The default user; asked for each time, as the guest may change its accounts.
async fn identity(agent: &Agent) -> Result<Arc<Identity>, Refusal> {
    let name = configured(agent)?.user.clone();
    let found = {
        let name = name.clone();
        agent.accounts.run(move || Ok(users::find(name.as_deref()))).await
    };
    match found {
        Ok(Some(user)) => Ok(Arc::new(user.identity)),
        Ok(None) => Err(users::unknown(name.as_deref())),
        Err(error) => Err(fault::refusal(Path::new("/etc/passwd"), &error)),
    }
}
