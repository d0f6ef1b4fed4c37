//! A resume of a session that another gateway holds: frames and payloads are passed between the client and the holder. An unknown, dead
//! or silent holder is told at once, never waited for.

use std::time::Duration;

use cell_proto::directory::Role;
use cell_proto::v1::gateway_peer_client::GatewayPeerClient;
use cell_proto::v1::{ProxyClosed, ProxyDown, ProxyResume, ProxyUp, proxy_down, proxy_up};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::transport::{ClientSocket, Incoming, Transport};
use crate::gateway::Gateway;
use crate::session::id;
use crate::session::machine::ResumeRefusal;
use crate::wire::close::CloseCode;
use crate::wire::event;
use crate::wire::frame::MAX_FRAME_BYTES;
use crate::wire::identify::Resume;

/// How long the holder may take to answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long either side may take nothing.
const STALL: Duration = Duration::from_secs(30);
/// Frames on their way to the holder.
const UP_QUEUE: usize = 16;

/// Resumes at the holder and carries the connection to its end.
///
/// # Errors
/// [`ResumeRefusal`]: nothing was sent to the client; the answer is op 9.
pub async fn resume(gateway: &Gateway, resume: &Resume, client: &mut ClientSocket) -> Result<(), ResumeRefusal> {
    let result = open(gateway, resume).await;
    gateway.metrics.resumed(result.as_ref().map(|_| ()).map_err(|refusal| *refusal));
    let (up, mut down, first) = result?;
    let mut pending = Some(first);
    let mut turn = std::pin::pin!(drain_turn(gateway));
    loop {
        let next = tokio::select! {
            () = &mut turn => {
                if client.send(vec![event::reconnect()]).await.is_ok() {
                    client.close(CloseCode::Unknown).await;
                }
                return Ok(());
            }
            frame = async { match pending.take() { Some(first) => Ok(Some(first)), None => down.message().await } } => frame,
            incoming = client.receive() => {
                if pass_up(&up, incoming, client).await { continue } else { return Ok(()) }
            }
        };
        match next.ok().flatten().and_then(|frame| frame.kind) {
            Some(proxy_down::Kind::Payload(payload)) => {
                let Ok(payload) = String::from_utf8(payload) else {
                    client.close(CloseCode::Unknown).await;
                    return Ok(());
                };
                // The holder keeps the session: a client that takes nothing comes back and resumes.
                if !matches!(tokio::time::timeout(STALL, client.send(vec![payload])).await, Ok(Ok(()))) {
                    gateway.metrics.lag_closes.inc();
                    return Ok(());
                }
            }
            Some(proxy_down::Kind::Close(closed)) => {
                client.close(code_of(closed.close_code)).await;
                return Ok(());
            }
            // The holder is gone: the client resumes again and is then told that its session is lost.
            Some(proxy_down::Kind::Refusal(_)) | None => {
                client.close(CloseCode::Unknown).await;
                return Ok(());
            }
        }
    }
}

/// Completes when this gateway drains and this connection's turn has come.
async fn drain_turn(gateway: &Gateway) {
    gateway.drain.cancelled().await;
    tokio::time::sleep(gateway.drain_window().mul_f64(rand::random_range(0.0..1.0))).await;
}

type Opened = (mpsc::Sender<ProxyUp>, Streaming<ProxyDown>, ProxyDown);

async fn open(gateway: &Gateway, resume: &Resume) -> Result<Opened, ResumeRefusal> {
    let gone = || ResumeRefusal::HolderGone;
    let holder = id::holder(&resume.session_id).ok_or(ResumeRefusal::Unknown)?;
    let address = {
        let view = gateway.directory.view();
        let member = view.member(&holder).filter(|member| member.role == Role::Gateway).ok_or_else(gone)?;
        member.grpc_address.clone()
    };
    let (up, frames) = mpsc::channel(UP_QUEUE);
    let first = ProxyResume {
        session_id: resume.session_id.clone(),
        token: resume.token.clone(),
        sequence: resume.sequence,
        proxy_member_id: gateway.config.role.member_id.clone(),
    };
    let _ = up.try_send(ProxyUp { kind: Some(proxy_up::Kind::Resume(first)) });
    let mut client = GatewayPeerClient::new(gateway.channels.get(&address).map_err(|_| gone())?)
        .max_decoding_message_size(cell_proto::MAX_MESSAGE_BYTES);
    let ask = async {
        let mut down = client.proxy(ReceiverStream::new(frames)).await.ok()?.into_inner();
        let first = down.message().await.ok()??;
        Some((down, first))
    };
    let (down, first) = tokio::time::timeout(ANSWER_TIMEOUT, ask).await.ok().flatten().ok_or_else(gone)?;
    match first.kind {
        Some(proxy_down::Kind::Refusal(_)) => Err(ResumeRefusal::Unknown),
        _ => Ok((up, down, first)),
    }
}

/// Passes what the client sent to the holder; false when the connection is over.
async fn pass_up(up: &mpsc::Sender<ProxyUp>, incoming: Incoming, client: &mut ClientSocket) -> bool {
    let closed = |code: u16| proxy_up::Kind::Closed(ProxyClosed { close_code: i32::from(code) });
    let kind = match incoming {
        Incoming::Frame(bytes) if bytes.len() <= MAX_FRAME_BYTES => {
            let frame = ProxyUp { kind: Some(proxy_up::Kind::ClientFrame(bytes.to_vec())) };
            return up.send_timeout(frame, STALL).await.is_ok();
        }
        Incoming::Frame(_) | Incoming::Malformed => {
            client.close(CloseCode::DecodeError).await;
            closed(CloseCode::DecodeError.number())
        }
        Incoming::Closed(code) => {
            client.finish().await;
            closed(code.unwrap_or(0))
        }
        Incoming::Lost => closed(0),
    };
    // The holder learns of a lost proxy by the end of the stream anyway.
    let _ = up.try_send(ProxyUp { kind: Some(kind) });
    false
}

fn code_of(number: i32) -> CloseCode {
    use CloseCode::{
        AlreadyAuthenticated, AuthenticationFailed, DecodeError, NotAuthenticated, RateLimited, SessionTimedOut,
        Unknown, UnknownOpcode,
    };
    let told = [
        UnknownOpcode,
        DecodeError,
        NotAuthenticated,
        AuthenticationFailed,
        AlreadyAuthenticated,
        RateLimited,
        SessionTimedOut,
    ];
    told.into_iter().find(|code| i32::from(code.number()) == number).unwrap_or(Unknown)
}
