//! Whether a URL answers: objects may say Ready from before a restart, an answer cannot.

use std::time::Duration;

use bytes::Bytes;
use http::Uri;
use http_body_util::Empty;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use tokio::time::timeout;

use crate::connect::innermost;

const DEADLINE: Duration = Duration::from_secs(2);

/// What keeps a URL from answering with success; `None` when it does.
pub async fn fault(url: &str) -> Option<String> {
    let Ok(uri) = url.parse::<Uri>() else {
        return Some(format!("{url} is not a URL"));
    };
    let client: Client<HttpConnector, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    match timeout(DEADLINE, client.get(uri)).await {
        Ok(Ok(answer)) if answer.status().is_success() => None,
        Ok(Ok(answer)) => Some(format!("{url} answers {}", answer.status())),
        Ok(Err(error)) => Some(format!("{url} does not answer: {}", innermost(&error))),
        Err(_) => Some(format!("{url} does not answer within {} s", DEADLINE.as_secs())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_closed_port_is_a_fault_that_names_the_url() {
        let found = fault("http://127.0.0.1:1/x").await.unwrap();
        assert!(found.starts_with("http://127.0.0.1:1/x does not answer"), "{found}");
        assert!(fault("not a url").await.is_some());
    }
}
