//! Ends connections on which nobody asks anything: a client that shakes hands and then says nothing must not keep its place, whatever
//! protocol it chose. A request counts until its answer's last byte, so that watches and followed logs live on.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use hyper::body::{Body as HttpBody, Bytes, Frame, SizeHint};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep_until};

/// How long a client may take from its handshake to its first request.
pub const FIRST_REQUEST: Duration = Duration::from_secs(10);

struct State {
    under_way: usize,
    asked: bool,
    since: Instant,
}

/// What goes on at one connection.
#[derive(Clone)]
pub struct Activity(Arc<Mutex<State>>);

/// A request under way; dropped when its answer has been sent, or is not wanted any more.
pub struct UnderWay(Activity);

impl Activity {
    /// Nothing was asked yet.
    pub fn begin() -> Self {
        Self(Arc::new(Mutex::new(State { under_way: 0, asked: false, since: Instant::now() })))
    }

    /// A request has arrived.
    pub fn asked(&self) -> UnderWay {
        let mut state = self.0.lock();
        state.under_way += 1;
        state.asked = true;
        UnderWay(self.clone())
    }

    /// Returns when nothing was asked for so long: `first` after the beginning, `later` after an answer.
    pub async fn until_idle(&self, first: Duration, later: Duration) {
        loop {
            let (quiet, due) = {
                let state = self.0.lock();
                let limit = if state.asked { later } else { first };
                let from = if state.under_way == 0 { state.since } else { Instant::now() };
                (state.under_way == 0, from + limit)
            };
            if quiet && Instant::now() >= due {
                return;
            }
            sleep_until(due).await;
        }
    }
}

impl UnderWay {
    /// The answer, which counts until its last byte is sent.
    pub fn with(self, answer: Response) -> Response {
        answer.map(|body| Body::new(Counted { body, _under_way: self }))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.0.0.lock();
        state.under_way -= 1;
        state.since = Instant::now();
    }
}

struct Counted {
    body: Body,
    _under_way: UnderWay,
}

impl HttpBody for Counted {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: Duration = Duration::from_millis(10);
    const LATER: Duration = Duration::from_millis(50);
    const PATIENCE: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn who_asks_nothing_is_let_go_soon_and_who_asked_later() {
        let silent = Activity::begin();
        let began = Instant::now();
        silent.until_idle(FIRST, LATER).await;
        assert!(began.elapsed() >= FIRST);

        let asking = Activity::begin();
        let began = Instant::now();
        drop(asking.asked());
        asking.until_idle(FIRST, LATER).await;
        assert!(began.elapsed() >= LATER);
    }

    #[tokio::test]
    async fn an_answer_under_way_keeps_its_connection() {
        let activity = Activity::begin();
        let answer = activity.asked().with(Response::new(Body::from("x")));
        assert_eq!(answer.body().size_hint().exact(), Some(1), "what is said of its length stays");
        let idle = activity.until_idle(FIRST, LATER);
        tokio::pin!(idle);
        assert!(tokio::time::timeout(LATER * 4, idle.as_mut()).await.is_err());
        drop(answer);
        assert!(tokio::time::timeout(PATIENCE, idle).await.is_ok());
    }
}
