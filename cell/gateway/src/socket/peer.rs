//! What other gateways ask: to resume a session held here for a client connected there, and to look for sessions of a user who joined a
//! guild.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use cell_proto::v1::gateway_peer_server::GatewayPeer;
use cell_proto::v1::{JoinedReply, JoinedRequest, ProxyDown, ProxyUp, Reason, Refusal, proxy_down, proxy_up};
use futures::Stream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::driver::{Driver, Start};
use super::transport::ProxiedSocket;
use crate::gateway::Gateway;
use crate::wire::identify::{Resume, bare_token};

/// Payloads on their way to the proxying gateway; a slow one slows the writer, as a slow socket does.
const DOWN_QUEUE: usize = 64;
const FIRST_FRAME_TIMEOUT: Duration = Duration::from_secs(5);

/// The service.
#[derive(Clone)]
pub struct Peer(pub Arc<Gateway>);

type Down = Result<ProxyDown, Status>;

#[tonic::async_trait]
impl GatewayPeer for Peer {
    type ProxyStream = Pin<Box<dyn Stream<Item = Down> + Send>>;

    async fn proxy(&self, request: Request<Streaming<ProxyUp>>) -> Result<Response<Self::ProxyStream>, Status> {
        let mut up = request.into_inner();
        let first = tokio::time::timeout(FIRST_FRAME_TIMEOUT, up.message())
            .await
            .map_err(|_| Status::deadline_exceeded("the first frame must be a resume"))??;
        let Some(ProxyUp { kind: Some(proxy_up::Kind::Resume(wanted)) }) = first else {
            return Err(Status::invalid_argument("the first frame must be a resume"));
        };
        let (down, frames) = mpsc::channel(DOWN_QUEUE);
        let resume = Resume {
            token: bare_token(&wanted.token).to_owned(),
            session_id: wanted.session_id,
            sequence: wanted.sequence,
        };
        self.serve(&resume, up, down);
        Ok(Response::new(Box::pin(ReceiverStream::new(frames))))
    }

    async fn joined(&self, request: Request<JoinedRequest>) -> Result<Response<JoinedReply>, Status> {
        let JoinedRequest { user_id, guild_id } = request.into_inner();
        let sessions = self.0.user_joined(user_id, guild_id);
        Ok(Response::new(JoinedReply { sessions: sessions as i32 }))
    }
}

impl Peer {
    fn serve(&self, resume: &Resume, up: Streaming<ProxyUp>, down: mpsc::Sender<Down>) {
        let refuse = |reason: Reason, message: &str| {
            let kind = Some(proxy_down::Kind::Refusal(Refusal::new(reason, message)));
            // The queue is empty: the refusal is its first frame.
            let _ = down.try_send(Ok(ProxyDown { kind }));
        };
        if self.0.drain.is_cancelled() {
            return refuse(Reason::Draining, "this gateway drains; its sessions cannot be resumed");
        }
        let mut driver = Driver::new(self.0.clone(), ProxiedSocket::new(up, down.clone()));
        match self.0.resume(resume, driver.number()) {
            Ok(slot) => {
                tokio::spawn(async move {
                    driver.drive(Start::Resumed(slot)).await;
                });
            }
            Err(refusal) => refuse(Reason::NotFound, refusal.label()),
        }
    }
}
