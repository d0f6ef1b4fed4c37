//! Reads a channel's history page by page: all of it, or what follows a message.

use std::time::Duration;

use http::Method;
use serde_json::Value;

use super::content;
use super::ledger::Seen;
use super::rest::{Call, Rest, RestError};

const PAGE: usize = 100;
const WITHIN: Duration = Duration::from_secs(60);

/// What was read.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Read {
    /// The demo's messages, oldest first, each as often as it was found.
    pub messages: Vec<Seen>,
    /// What it was read from.
    pub from_id: i64,
    /// The last message id read, whatever it said; what it was read from when nothing followed.
    pub last_id: i64,
}

/// Reads everything after a message id (0: from the beginning).
///
/// # Errors
/// [`RestError`].
pub async fn read_after(rest: &Rest, token: &str, channel_id: i64, after: i64, at_ms: u64) -> Result<Read, RestError> {
    let mut read = Read { messages: Vec::new(), from_id: after, last_id: after };
    loop {
        let page = rest
            .call(&Call {
                method: Method::GET,
                path: format!("/channels/{channel_id}/messages?limit={PAGE}&after={}", read.last_id),
                authorization: token,
                body: None,
                within: WITHIN,
            })
            .await?;
        let full = page.as_array().map_or(0, Vec::len) >= PAGE;
        let before = read.last_id;
        add_page(&mut read, channel_id, &page, at_ms);
        // A page that brings nothing new would be asked for again without end.
        if !full || read.last_id == before {
            return Ok(read);
        }
    }
}

/// Reads the newest page, only to have read it.
///
/// # Errors
/// [`RestError`].
pub async fn read_newest(rest: &Rest, token: &str, channel_id: i64) -> Result<(), RestError> {
    let path = format!("/channels/{channel_id}/messages?limit={PAGE}");
    let call = Call { method: Method::GET, path, authorization: token, body: None, within: WITHIN };
    rest.call(&call).await.map(|_| ())
}

/// Pages come newest first.
fn add_page(read: &mut Read, channel_id: i64, page: &Value, at_ms: u64) {
    let mut found: Vec<(i64, Option<u32>)> = page
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|message| {
            let id = message["id"].as_str()?.parse().ok()?;
            Some((id, message["content"].as_str().and_then(content::number)))
        })
        .collect();
    found.sort_by_key(|(id, _)| *id);
    for (message_id, number) in found {
        read.last_id = read.last_id.max(message_id);
        if let Some(number) = number {
            read.messages.push(Seen { number, message_id, channel_id, at_ms });
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_page_is_turned_round_and_copies_in_it_are_kept() {
        let mut read = Read { messages: vec![], from_id: 3, last_id: 3 };
        let message = |id: &str, content: &str| json!({"id": id, "content": content});
        let page = json!([
            message("9", "demo #2 a"),
            message("9", "demo #2 a"),
            message("7", "hello"),
            message("5", "demo #1 b")
        ]);
        add_page(&mut read, 100, &page, 4);
        assert_eq!(
            read.messages.iter().map(|seen| (seen.number, seen.message_id)).collect::<Vec<_>>(),
            [(1, 5), (2, 9), (2, 9)]
        );
        assert_eq!(read.last_id, 9);
    }
}
