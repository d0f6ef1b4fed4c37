//! What the API's port answers while this process does not lead: a refusal that names the leader, so that no client waits for one that
//! will not come. It opens once, when the leader's caches are filled.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use axum::Router;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use parking_lot::Mutex;
use tower::ServiceExt;

use super::error::ApiError;

/// The port's door. Clones share it.
#[derive(Clone, Default)]
pub struct Door(Arc<Inner>);

#[derive(Default)]
struct Inner {
    open: ArcSwapOption<Router>,
    /// Who held the Lease when it was last read; empty while nobody is known to.
    leader: Mutex<String>,
}

impl Door {
    /// Everything that the port serves.
    pub fn router(&self) -> Router {
        Router::new().fallback(enter).with_state(self.clone())
    }

    /// Another process leads, or nobody does.
    pub fn led_by(&self, leader: &str) {
        leader.clone_into(&mut self.0.leader.lock());
    }

    /// This process leads and knows everything: `router` answers from now on.
    pub fn open(&self, router: Router) {
        self.0.open.store(Some(Arc::new(router)));
    }

    fn closed(&self) -> ApiError {
        let leader = self.0.leader.lock().clone();
        let who = if leader.is_empty() {
            "no leader is known yet".to_owned()
        } else {
            format!("{leader} leads, or is about to")
        };
        let detail =
            format!("{who}; the leader's address is in Fleet.status.controlPlaneAddress; ask there in a moment");
        ApiError::new(503, "NotLeader", "this process does not serve the API now", detail)
            .next("cellctl describe fleets")
    }
}

async fn enter(State(door): State<Door>, request: Request) -> Response {
    let Some(router) = door.0.open.load_full() else { return door.closed().into_response() };
    match Router::clone(&router).oneshot(request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}

#[cfg(test)]
mod tests {
    use axum::body::{Body, to_bytes};
    use axum::routing::get;

    use super::*;

    async fn ask(door: &Door) -> (u16, String) {
        let request = Request::get("/v1/moves").body(Body::empty()).unwrap();
        let response = enter(State(door.clone()), request).await;
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), 64 * 1024).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    #[tokio::test]
    async fn a_standby_refuses_at_once_and_names_the_leader_until_it_leads_itself() {
        let door = Door::default();
        let (status, body) = ask(&door).await;
        assert_eq!(status, 503);
        assert!(body.contains("no leader is known"), "{body}");
        door.led_by("operator-1");
        let (status, body) = ask(&door).await;
        assert_eq!(status, 503);
        assert!(body.contains("NotLeader") && body.contains("operator-1 leads"), "{body}");
        door.open(Router::new().route("/v1/moves", get(|| async { "all of them" })));
        assert_eq!(ask(&door).await, (200, "all of them".to_owned()));
    }
}
