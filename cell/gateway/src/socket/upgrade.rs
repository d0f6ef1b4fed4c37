//! The websocket entry: any path is accepted, as libraries ask for several. Reads the parameters, then drives the connection, here or
//! through the gateway that holds the session.

use std::sync::Arc;

use axum::response::{IntoResponse, Response};
use serde::Deserialize;

use super::compress::Compressor;
use super::driver::{Driver, Outcome, Start};
use super::handshake::{Handshake, connection_of};
use super::proxy;
use super::transport::{ClientSocket, Transport};
use crate::gateway::Gateway;
use crate::rest::error::ApiError;
use crate::wire::close::CloseCode;
use crate::wire::event;

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

/// Answers a handshake and drives what becomes of it.
pub fn handle(gateway: Arc<Gateway>, parameters: &Parameters, handshake: Handshake) -> Response {
    if gateway.drain.is_cancelled() {
        gateway.metrics.refused_connections.inc();
        return ApiError::unavailable("this gateway drains; connect again").into_response();
    }
    if usize::try_from(gateway.metrics.connections.get()).is_ok_and(|open| open >= gateway.config.limits.max_sessions) {
        gateway.metrics.refused_connections.inc();
        return ApiError::unavailable("this gateway is full; connect again").into_response();
    }
    let compressor = Compressor::of_parameter(parameters.compress.as_deref());
    let refusal = parameters.refusal().or(compressor.is_none().then_some(CloseCode::DecodeError));
    let (response, upgrade) = handshake.answer();
    tokio::spawn(async move {
        // What the upgrade needs is let go of before the connection is driven: it is long.
        let upgraded = upgrade.await.ok().and_then(connection_of);
        let Some((stream, early)) = upgraded else {
            return tracing::debug!("a client left in the middle of its handshake");
        };
        let mut socket = ClientSocket::new(stream, early, compressor.unwrap_or(Compressor::None)).await;
        if let Some(code) = refusal {
            gateway.metrics.closed(code);
            return socket.close(code).await;
        }
        // In one place on the heap: a task holds what it was called with beside what it makes of it.
        let driver = Box::new(Driver::new(gateway.clone(), socket));
        tokio::spawn(serve(gateway, driver));
    });
    response
}

/// Counts an open connection for as long as it is open.
struct Open(Arc<Gateway>);

impl Open {
    fn new(gateway: &Arc<Gateway>) -> Self {
        gateway.metrics.connections.inc();
        Self(gateway.clone())
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.metrics.connections.dec();
    }
}

async fn serve(gateway: Arc<Gateway>, mut driver: Box<Driver<ClientSocket>>) {
    let _open = Open::new(&gateway);
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

#[cfg(test)]
mod tests {
    use super::*;

    fn size_of_task<A, B, F: Future>(_: fn(A, B) -> F) -> usize {
        size_of::<F>()
    }

    #[test]
    fn the_task_of_an_idle_connection_is_small() {
        let task = size_of_task(serve) + size_of::<Driver<ClientSocket>>();
        assert!(task <= 1300, "{task} bytes: what is done now and then belongs on the heap while it is done");
    }
}
