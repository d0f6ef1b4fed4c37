//! REST calls of the demo's clients. A call is repeated while its outcome is unknown or it is told to wait, until its deadline: what
//! may be repeated carries a nonce or names what it wants.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt, Full, Limited};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::time::{Instant, sleep, timeout};

use crate::connect::innermost;

const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;
const ONE_CALL: Duration = Duration::from_secs(20);
const LONGEST_WAIT: Duration = Duration::from_secs(5);

/// Why a call came to nothing.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RestError {
    /// The server says no, and would again.
    #[error("{method} {path}: HTTP {status}: {message}")]
    Refused {
        /// The method.
        method: Method,
        /// The path.
        path: String,
        /// The status.
        status: u16,
        /// The server's words.
        message: String,
    },
    /// Still unknown or told to wait at the deadline.
    #[error("{method} {path}: not done within {seconds} s: {last}")]
    Deadline {
        /// The method.
        method: Method,
        /// The path.
        path: String,
        /// How long was tried.
        seconds: u64,
        /// The last try's outcome.
        last: String,
    },
}

/// A call.
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The method.
    pub method: Method,
    /// Below `/api/v10`.
    pub path: String,
    /// The `Authorization` header.
    pub authorization: &'a str,
    /// JSON.
    pub body: Option<Value>,
    /// How long it is tried.
    pub within: Duration,
}

/// A REST client with its own connections.
#[derive(Clone, Debug)]
pub struct Rest {
    base: String,
    http: Client<HttpConnector, Full<Bytes>>,
}

enum Try {
    Done(Value),
    Again { wait: Duration, why: String },
    Refused { status: u16, message: String },
}

impl Rest {
    /// A client for a base URL, connecting from an address.
    pub fn new(base: &str, from: Ipv4Addr) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_local_address(Some(IpAddr::V4(from)));
        connector.set_connect_timeout(Some(Duration::from_secs(5)));
        connector.set_nodelay(true);
        let http = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(Duration::from_secs(20))
            .pool_max_idle_per_host(64)
            .build(connector);
        Self { base: base.to_owned(), http }
    }

    /// Makes the call until it has an outcome.
    ///
    /// # Errors
    /// [`RestError`].
    pub async fn call(&self, call: &Call<'_>) -> Result<Value, RestError> {
        let began = Instant::now();
        loop {
            let (wait, why) = match self.once(call).await {
                Try::Done(value) => return Ok(value),
                Try::Refused { status, message } => {
                    return Err(RestError::Refused {
                        method: call.method.clone(),
                        path: call.path.clone(),
                        status,
                        message,
                    });
                }
                Try::Again { wait, why } => (wait, why),
            };
            if began.elapsed() + wait >= call.within {
                return Err(RestError::Deadline {
                    method: call.method.clone(),
                    path: call.path.clone(),
                    seconds: call.within.as_secs(),
                    last: why,
                });
            }
            sleep(wait).await;
        }
    }

    async fn once(&self, call: &Call<'_>) -> Try {
        let again = |why: String| Try::Again { wait: Duration::from_millis(100), why };
        let body = call.body.as_ref().map(Value::to_string).unwrap_or_default();
        let mut request = Request::builder()
            .method(call.method.clone())
            .uri(format!("{}{}", self.base, call.path))
            .header(header::AUTHORIZATION, call.authorization);
        if call.body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let Ok(request) = request.body(Full::new(Bytes::from(body))) else {
            return Try::Refused { status: 0, message: "not a request".to_owned() };
        };
        let answer = async {
            let response = self.http.request(request).await.map_err(|error| innermost(&error))?;
            let (status, wait) = (response.status(), retry_after(response.headers()));
            let body = Limited::new(response.into_body(), MAX_BODY_BYTES)
                .collect()
                .await
                .map_err(|error| error.to_string())?;
            Ok::<_, String>((status, wait, body.to_bytes()))
        };
        match timeout(ONE_CALL, answer).await {
            Err(_) => again(format!("no answer within {} s", ONE_CALL.as_secs())),
            Ok(Err(error)) => again(error),
            Ok(Ok((status, wait, body))) => judge(status, wait, &body),
        }
    }
}

fn retry_after(headers: &http::HeaderMap) -> Option<Duration> {
    let seconds: f64 = headers
        .get("x-ratelimit-reset-after")
        .or_else(|| headers.get(header::RETRY_AFTER))?
        .to_str()
        .ok()?
        .parse()
        .ok()?;
    (seconds.is_finite() && seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.min(LONGEST_WAIT.as_secs_f64())))
}

fn judge(status: StatusCode, wait: Option<Duration>, body: &[u8]) -> Try {
    if status.is_success() {
        return match serde_json::from_slice(body) {
            Ok(value) => Try::Done(value),
            Err(_) if body.is_empty() => Try::Done(Value::Null),
            Err(error) => Try::Refused { status: status.as_u16(), message: error.to_string() },
        };
    }
    let message: String = String::from_utf8_lossy(body).chars().take(300).collect();
    if status == StatusCode::TOO_MANY_REQUESTS || status.is_server_error() {
        let told = serde_json::from_slice::<Value>(body).ok().and_then(|body| body["retry_after"].as_f64());
        let told = told.filter(|seconds| (0.0..1e6).contains(seconds)).map(Duration::from_secs_f64);
        let wait = told.or(wait).unwrap_or(Duration::from_millis(200)).clamp(Duration::from_millis(20), LONGEST_WAIT);
        return Try::Again { wait, why: format!("HTTP {status}: {message}") };
    }
    Try::Refused { status: status.as_u16(), message }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Answers each connection with the next of the scripted texts; an empty one is a reset.
    async fn serve(answers: Vec<&'static str>) -> (String, Arc<AtomicU32>) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let served = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&served);
        tokio::spawn(async move {
            for answer in answers {
                let (mut stream, _) = listener.accept().await.unwrap();
                let mut bytes = [0; 4096];
                let _ = stream.read(&mut bytes).await.unwrap();
                count.fetch_add(1, Ordering::Relaxed);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        });
        (base, served)
    }

    fn call() -> Call<'static> {
        Call {
            method: Method::POST,
            path: "/x".into(),
            authorization: "t",
            body: Some(serde_json::json!({"nonce": "1"})),
            within: Duration::from_secs(10),
        }
    }

    const OK: &str = "HTTP/1.1 200 OK\r\ncontent-length: 8\r\nconnection: close\r\n\r\n{\"a\": 1}";
    const WAIT: &str =
        "HTTP/1.1 429 Too Many Requests\r\ncontent-length: 20\r\nconnection: close\r\n\r\n{\"retry_after\": 0.0}";
    const AWAY: &str = "HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\nconnection: close\r\n\r\n";
    const NO: &str = "HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno";

    #[tokio::test]
    async fn a_call_is_repeated_until_it_has_an_outcome() {
        let (base, served) = serve(vec![WAIT, "", AWAY, OK]).await;
        let value = Rest::new(&base, Ipv4Addr::LOCALHOST).call(&call()).await.unwrap();
        assert_eq!(value["a"], 1);
        assert_eq!(served.load(Ordering::Relaxed), 4);
    }

    #[tokio::test]
    async fn a_refusal_is_not_repeated() {
        let (base, served) = serve(vec![NO, OK]).await;
        let error = Rest::new(&base, Ipv4Addr::LOCALHOST).call(&call()).await.unwrap_err();
        assert_eq!(error.to_string(), "POST /x: HTTP 403: no");
        assert_eq!(served.load(Ordering::Relaxed), 1);
    }

    #[tokio::test]
    async fn a_call_ends_at_its_deadline() {
        let (base, _) = serve(vec![AWAY; 100]).await;
        let call = Call { within: Duration::from_millis(500), ..call() };
        let error = Rest::new(&base, Ipv4Addr::LOCALHOST).call(&call).await.unwrap_err();
        assert!(matches!(error, RestError::Deadline { .. }), "{error}");
    }
}
