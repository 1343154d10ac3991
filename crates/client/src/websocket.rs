//! WebSockets of the data plane. The handshake is an ordinary data-plane call, so a socket has the same connections,
//! trust, waking and errors as everything else; only what follows the answer's head is different.

use std::borrow::Cow;
use std::time::Duration;

use http::header::{SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_PROTOCOL};
use http::{HeaderMap, Method, StatusCode};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::handshake::client::generate_key;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;
use tokio_tungstenite::tungstenite::protocol::{Role, WebSocketConfig};

use crate::control::Client;
use crate::data_plane::{DataBody, DataCall};
use crate::error::{ClientError, Plane};
use crate::transport::Exchange;

/// Longest time for one handshake. Waking the sandbox is a call of its own, with a limit of its own.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);
/// Largest message accepted. Servers send pieces of some ten kilobytes.
const MAX_MESSAGE_BYTES: usize = 4 * 1024 * 1024;
/// Sessions move small pieces; the default of 128 KiB each way is for other uses.
const READ_BUFFER_BYTES: usize = 32 * 1024;

pub(crate) type Socket = WebSocketStream<reqwest::Upgraded>;

/// The headers of a handshake that differ from call to call.
pub(crate) struct Handshake {
    pub(crate) key: String,
    pub(crate) protocol: &'static str,
}

impl Client {
    /// Opens a WebSocket. Nothing happens in the sandbox before something is sent on it.
    pub(crate) async fn websocket(
        &self,
        id: &str,
        path: impl Into<Cow<'static, str>>,
        query: Vec<(&'static str, &str)>,
        protocol: &'static str,
        what: &'static str,
    ) -> Result<(Socket, HeaderMap), ClientError> {
        let exchange = Exchange { what, plane: Plane::Data, mutating: false, timeout: HANDSHAKE_TIMEOUT };
        let key = generate_key();
        let expected = derive_accept_key(key.as_bytes());
        let call = DataCall {
            exchange,
            method: Method::GET,
            path: path.into(),
            query,
            body: DataBody::Upgrade(Handshake { key, protocol }),
        };
        let response = self.data_call(id, call).await?;
        let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        if response.status() != StatusCode::SWITCHING_PROTOCOLS
            || header(SEC_WEBSOCKET_ACCEPT) != Some(&expected)
            || header(SEC_WEBSOCKET_PROTOCOL) != Some(protocol)
        {
            return Err(exchange.protocol(format!("the server does not switch to {protocol}")));
        }
        let headers = response.headers().clone();
        let upgraded = response.upgrade().await.map_err(|_| exchange.interrupted())?;
        let config = WebSocketConfig::default()
            .read_buffer_size(READ_BUFFER_BYTES)
            .write_buffer_size(0)
            .max_message_size(Some(MAX_MESSAGE_BYTES))
            .max_frame_size(Some(MAX_MESSAGE_BYTES));
        Ok((WebSocketStream::from_raw_socket(upgraded, Role::Client, Some(config)).await, headers))
    }
}
