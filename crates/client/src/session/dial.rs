//! Opening the connection of a session.

use std::time::Duration;

use futures_util::{SinkExt, StreamExt};
use tokio_tungstenite::tungstenite::Message;
use wire::data_plane::{Attached, EXEC_SUBPROTOCOL};

use super::{id_of, path_of};
use crate::control::Client;
use crate::error::ClientError;
use crate::websocket::Socket;

/// Longest wait for the first message of a session that is attached to, and for a start message to be taken: the server
/// has accepted the connection and has nothing else to do.
const FIRST_MESSAGE_TIMEOUT: Duration = Duration::from_secs(15);
const WHAT: &str = "the session";

/// Opens a session and says what to run. Once this has been said the command may run.
pub(super) async fn start(
    client: &Client,
    id: &str,
    start: String,
) -> Result<(Socket, Option<String>), ClientError> {
    let (mut socket, headers) =
        client.websocket(id, "/exec/connect", Vec::new(), EXEC_SUBPROTOCOL, WHAT).await?;
    let interrupted = ClientError::Interrupted { what: WHAT, may_have_taken_effect: true };
    match tokio::time::timeout(FIRST_MESSAGE_TIMEOUT, socket.send(Message::text(start))).await {
        Ok(Ok(())) => Ok((socket, id_of(&headers))),
        _ => Err(interrupted),
    }
}

/// Attaches to a session, and reads where its output goes on.
pub(super) async fn attach(
    client: &Client,
    id: &str,
    session_id: &str,
    offset: Option<u64>,
) -> Result<(Socket, Attached), ClientError> {
    let path = path_of(session_id, "/attach")?;
    let offset = offset.map(|offset| offset.to_string());
    let query = offset.as_deref().map(|offset| ("offset", offset)).into_iter().collect();
    let (mut socket, _) = client.websocket(id, path, query, EXEC_SUBPROTOCOL, WHAT).await?;
    let first = async {
        loop {
            match socket.next().await {
                Some(Ok(Message::Text(text))) => return Some(text),
                Some(Ok(Message::Ping(_) | Message::Pong(_))) => {}
                _ => return None,
            }
        }
    };
    let broke = |what: &str| ClientError::Protocol {
        what: WHAT,
        detail: what.to_owned(),
        may_have_taken_effect: false,
    };
    let first = match tokio::time::timeout(FIRST_MESSAGE_TIMEOUT, first).await {
        Ok(Some(text)) => text,
        Ok(None) => return Err(ClientError::Interrupted { what: WHAT, may_have_taken_effect: false }),
        Err(_) => {
            return Err(ClientError::Timeout {
                what: WHAT,
                after: FIRST_MESSAGE_TIMEOUT,
                may_have_taken_effect: false,
            });
        }
    };
    let attached =
        serde_json::from_str(&first).map_err(|_| broke("it does not say where the output goes on"))?;
    Ok((socket, attached))
}
