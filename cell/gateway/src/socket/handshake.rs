//! The websocket handshake: which requests ask for a websocket and what they are answered. It reads no frame.

use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::handshake::derive_accept_key;

use crate::http::ClientStream;
use crate::rest::error::ApiError;

/// A connection about to speak websocket.
pub struct Handshake {
    upgrade: OnUpgrade,
    accept: HeaderValue,
}

impl Handshake {
    /// Reads a request's head: `None` when it asks for no websocket.
    ///
    /// # Errors
    /// 426 and 400 for a handshake that is not one of RFC 6455.
    pub fn read(parts: &mut Parts) -> Option<Result<Self, ApiError>> {
        if parts.method != Method::GET || !has_token(&parts.headers, &header::UPGRADE, "websocket") {
            return None;
        }
        let upgrade = parts.extensions.remove::<OnUpgrade>()?;
        if !has_token(&parts.headers, &header::CONNECTION, "upgrade") {
            return Some(Err(ApiError::bad(0, "the Connection header does not say upgrade")));
        }
        if parts.headers.get(header::SEC_WEBSOCKET_VERSION).is_none_or(|version| version != "13") {
            return Some(Err(ApiError::new(StatusCode::UPGRADE_REQUIRED, 0, "Sec-WebSocket-Version must be 13")));
        }
        let accept = parts
            .headers
            .get(header::SEC_WEBSOCKET_KEY)
            .and_then(|key| HeaderValue::from_str(&derive_accept_key(key.as_bytes())).ok());
        Some(match accept {
            Some(accept) => Ok(Self { upgrade, accept }),
            None => Err(ApiError::bad(0, "Sec-WebSocket-Key is missing")),
        })
    }

    /// The answer, and what comes true once it is sent.
    pub fn answer(self) -> (Response, OnUpgrade) {
        let headers: [(HeaderName, HeaderValue); 3] = [
            (header::CONNECTION, HeaderValue::from_static("upgrade")),
            (header::UPGRADE, HeaderValue::from_static("websocket")),
            (header::SEC_WEBSOCKET_ACCEPT, self.accept),
        ];
        ((StatusCode::SWITCHING_PROTOCOLS, headers).into_response(), self.upgrade)
    }
}

/// The bare connection after an upgrade, with what the client sent already. `None` when it is not one of this gateway's listeners.
pub fn connection_of(upgraded: Upgraded) -> Option<(TcpStream, Vec<u8>)> {
    let parts = upgraded.downcast::<TokioIo<ClientStream>>().ok()?;
    Some((parts.io.into_inner().into_inner(), parts.read_buf.to_vec()))
}

fn has_token(headers: &HeaderMap, name: &HeaderName, token: &str) -> bool {
    let values = headers.get_all(name).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|value| value.trim().eq_ignore_ascii_case(token))
}

#[cfg(test)]
mod tests {
    use axum::http::Request;

    use super::*;

    #[test]
    fn only_a_get_that_says_websocket_asks_for_one() {
        let plain = Request::get("/").header("connection", "keep-alive").body(()).unwrap();
        assert!(Handshake::read(&mut plain.into_parts().0).is_none());
        let post = Request::post("/").header("upgrade", "websocket").body(()).unwrap();
        assert!(Handshake::read(&mut post.into_parts().0).is_none());
    }

    #[test]
    fn tokens_are_found_in_lists_and_in_any_case() {
        let mut headers = HeaderMap::new();
        headers.append(header::CONNECTION, HeaderValue::from_static("keep-alive, Upgrade"));
        assert!(has_token(&headers, &header::CONNECTION, "upgrade"));
        assert!(!has_token(&headers, &header::CONNECTION, "close"));
    }
}
