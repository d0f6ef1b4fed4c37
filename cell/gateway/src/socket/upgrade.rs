//! The websocket entry: any path is accepted, as libraries ask for several. Reads the parameters, then drives the connection, here or
//! through the gateway that holds the session.

use std::sync::Arc;

use axum::extract::{Query, State, WebSocketUpgrade, ws::WebSocket};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::compress::Compressor;
use super::driver::{Driver, Outcome, Start};
use super::proxy;
use super::transport::{ClientSocket, Transport};
use crate::gateway::Gateway;
use crate::rest::error::ApiError;
use crate::wire::close::CloseCode;
use crate::wire::event;

/// Bytes a websocket reads at a time: frames of clients are small and sockets many.
const READ_BUFFER_BYTES: usize = 1024;
/// Bytes of frames gathered before they are written out.
const WRITE_BUFFER_BYTES: usize = 16 * 1024;
/// Frames above the protocol's 4096 bytes are read up to here, so that the close code can be told.
const MAX_READ_BYTES: usize = 64 * 1024;

/// What stands behind the question mark.
#[derive(Debug, Default, Deserialize)]
pub struct Parameters {
    v: Option<String>,
    encoding: Option<String>,
    compress: Option<String>,
}

impl Parameters {
    fn refusal(&self) -> Option<CloseCode> {
        if !matches!(self.v.as_deref(), None | Some("9" | "10")) {
            return Some(CloseCode::InvalidVersion);
        }
        (!matches!(self.encoding.as_deref(), None | Some("json"))).then_some(CloseCode::DecodeError)
    }
}

/// Upgrades a request to a websocket.
pub async fn handle(
    State(gateway): State<Arc<Gateway>>,
    Query(parameters): Query<Parameters>,
    upgrade: WebSocketUpgrade,
) -> Response {
    if gateway.drain.is_cancelled() {
        gateway.metrics.refused_connections.inc();
        return ApiError::unavailable("this gateway drains; connect again").into_response();
    }
    upgrade
        .read_buffer_size(READ_BUFFER_BYTES)
        .write_buffer_size(WRITE_BUFFER_BYTES)
        .max_message_size(MAX_READ_BYTES)
        .max_frame_size(MAX_READ_BYTES)
        .on_upgrade(move |socket| accept(gateway, parameters, socket))
}

async fn accept(gateway: Arc<Gateway>, parameters: Parameters, socket: WebSocket) {
    let compressor = Compressor::of_parameter(parameters.compress.as_deref());
    let refusal = parameters.refusal().or(compressor.is_none().then_some(CloseCode::DecodeError));
    let mut socket = ClientSocket::new(socket, compressor.unwrap_or(Compressor::None));
    if let Some(code) = refusal {
        gateway.metrics.closed(code);
        return socket.close(code).await;
    }
    let _open = Open::new(&gateway);
    serve(gateway.clone(), socket).await;
}

/// Counts an open connection for as long as it is open.
struct Open<'a>(&'a Gateway);

impl<'a> Open<'a> {
    fn new(gateway: &'a Gateway) -> Self {
        gateway.metrics.connections.inc();
        Self(gateway)
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.metrics.connections.dec();
    }
}

async fn serve(gateway: Arc<Gateway>, socket: ClientSocket) {
    let mut driver = Driver::new(gateway.clone(), socket);
    let mut start = Start::Greet;
    loop {
        let resume = match driver.drive(start).await {
            Outcome::Done => return,
            Outcome::Elsewhere(resume) => resume,
        };
        let proxied = Box::pin(proxy::resume(&gateway, &resume, driver.transport())).await;
        if proxied.is_ok() {
            return;
        }
        driver.await_again();
        if driver.transport().send(vec![event::invalid_session(false)]).await.is_err() {
            return;
        }
        start = Start::Refused;
    }
}
