//! Drives one connection: frames in, payloads out, the clock, the drain. The machines decide; this carries out.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::transport::{Gone, Incoming, Transport};
use crate::gateway::Gateway;
use crate::session::connection::{Action, Connection};
use crate::session::machine::{Ended, ResumeRefusal, Taken};
use crate::session::registry::Slot;
use crate::sessions::{IdentifyRefusal, Started};
use crate::wire::close::{CloseCode, client_close_ends_session};
use crate::wire::event::{self, Event};
use crate::wire::identify::Resume;

/// Events taken from the buffer at a time, and their bytes.
const BATCH_EVENTS: usize = 64;
const BATCH_BYTES: usize = 128 * 1024;
/// Batches written before the client is listened to again.
const BATCHES_AT_A_TIME: u32 = 8;
/// How long a write may make no progress.
const STALL: Duration = Duration::from_secs(30);

/// What a deciding task found.
enum Decision {
    Identified(Result<Started, IdentifyRefusal>),
}

/// How driving a connection ended.
pub enum Outcome {
    /// The connection is over.
    Done,
    /// The client wants to resume a session that another gateway holds.
    Elsewhere(Resume),
}

/// How a connection begins.
pub enum Start {
    /// Hello is sent first.
    Greet,
    /// Hello was sent before; the client was refused (op 9) and may try again.
    Refused,
    /// A resume that came through another gateway and was accepted.
    Resumed(Arc<Slot>),
}

type Deciding = Pin<Box<dyn Future<Output = Decision> + Send>>;

/// One connection being driven.
pub struct Driver<T> {
    gateway: Arc<Gateway>,
    transport: T,
    connection: Connection,
    number: u64,
    slot: Option<Arc<Slot>>,
    deciding: Option<Deciding>,
    drain_at: Option<Instant>,
}

/// Why the loop ends.
enum Stop {
    Close(CloseCode),
    ClientClosed(Option<u16>),
    Lost,
    Elsewhere(Resume),
}

/// What happened.
enum Happening {
    Incoming(Incoming),
    Wake,
    Decided(Decision),
    Time,
    Drain,
}

impl<T: Transport> Driver<T> {
    /// A connection that has just been accepted.
    pub fn new(gateway: Arc<Gateway>, transport: T) -> Self {
        let connection = Connection::new(gateway.connection_limits(), gateway.now_ms());
        let number = gateway.connections.next();
        Self { gateway, transport, connection, number, slot: None, deciding: None, drain_at: None }
    }

    /// The number this connection attaches to sessions with.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// A resume elsewhere was refused: the client may identify or resume again.
    pub fn await_again(&mut self) {
        self.connection.refused(self.gateway.now_ms());
    }

    /// The transport, for a connection that goes on elsewhere.
    pub fn transport(&mut self) -> &mut T {
        &mut self.transport
    }

    /// Drives the connection to its end.
    pub async fn drive(&mut self, start: Start) -> Outcome {
        // What is done now and then is on the heap while it is done: an idle connection is only what it waits with.
        let stop = match Box::pin(self.begin(start)).await {
            Ok(()) => self.run().await,
            Err(stop) => stop,
        };
        Box::pin(self.end(stop)).await
    }

    async fn begin(&mut self, start: Start) -> Result<(), Stop> {
        match start {
            Start::Greet => {
                let hello = event::hello(self.gateway.config.limits.heartbeat_interval_ms);
                self.send(vec![hello]).await
            }
            Start::Refused => Ok(()),
            Start::Resumed(slot) => {
                self.connection.deciding();
                self.connection.established();
                self.slot = Some(slot);
                self.write().await
            }
        }
    }

    async fn run(&mut self) -> Stop {
        loop {
            let happening = self.wait().await;
            if let Err(stop) = Box::pin(self.handle(happening)).await {
                return stop;
            }
        }
    }

    async fn handle(&mut self, happening: Happening) -> Result<(), Stop> {
        match happening {
            Happening::Incoming(incoming) => self.incoming(incoming).await,
            Happening::Wake => self.write().await,
            Happening::Decided(Decision::Identified(result)) => self.identified(result).await,
            Happening::Drain => {
                let window = self.gateway.drain_window();
                self.drain_at = Some(Instant::now() + window.mul_f64(rand::random_range(0.0..1.0)));
                Ok(())
            }
            Happening::Time => self.time().await,
        }
    }

    async fn wait(&mut self) -> Happening {
        let until_tick = self.connection.deadline_ms().saturating_sub(self.gateway.now_ms());
        let tick_at = Instant::now() + Duration::from_millis(until_tick);
        let wake_at = self.drain_at.map_or(tick_at, |drain_at| drain_at.min(tick_at));
        let slot = self.slot.as_ref();
        let deciding = self.deciding.as_mut();
        let draining = self.drain_at.is_some();
        // What the client says comes first: its frames are few, by the frame rate. Events come last: they are many.
        tokio::select! {
            biased;
            incoming = self.transport.receive() => Happening::Incoming(incoming),
            () = tokio::time::sleep_until(wake_at) => Happening::Time,
            () = self.gateway.drain.cancelled(), if !draining => Happening::Drain,
            decision = decided(deciding) => Happening::Decided(decision),
            () = woken(slot) => Happening::Wake,
        }
    }

    async fn time(&mut self) -> Result<(), Stop> {
        if let Some(code) = self.connection.tick(self.gateway.now_ms()) {
            return Err(Stop::Close(code));
        }
        if self.drain_at.is_some_and(|drain_at| Instant::now() >= drain_at) {
            self.send(vec![event::reconnect()]).await?;
            return Err(Stop::Close(CloseCode::Unknown));
        }
        Ok(())
    }

    async fn incoming(&mut self, incoming: Incoming) -> Result<(), Stop> {
        let bytes = match incoming {
            Incoming::Frame(bytes) => bytes,
            Incoming::Closed(code) => return Err(Stop::ClientClosed(code)),
            Incoming::Malformed => return Err(Stop::Close(CloseCode::DecodeError)),
            Incoming::Lost => return Err(Stop::Lost),
        };
        match self.connection.frame(&bytes, self.gateway.now_ms()) {
            Action::Nothing => Ok(()),
            Action::Acknowledge => self.send(vec![event::heartbeat_ack()]).await,
            Action::Close(code) => Err(Stop::Close(code)),
            Action::Unserved(what) => {
                self.gateway.metrics.unserved(what);
                Ok(())
            }
            Action::Identify(identify) => {
                if identify.compress {
                    self.transport.compress_messages();
                }
                let (gateway, number) = (self.gateway.clone(), self.number);
                self.deciding =
                    Some(Box::pin(async move { Decision::Identified(gateway.identify(&identify, number).await) }));
                Ok(())
            }
            Action::Resume(resume) => self.resume(resume).await,
            Action::RequestMembers(request) => {
                if let Some(slot) = &self.slot {
                    super::members::answer(&self.gateway, slot, request);
                }
                Ok(())
            }
        }
    }

    async fn identified(&mut self, result: Result<Started, IdentifyRefusal>) -> Result<(), Stop> {
        self.deciding = None;
        match result {
            Ok(started) => {
                self.connection.established();
                started.guilds.iter().for_each(|guild_id| self.gateway.hub.subscribe(*guild_id, &started.slot));
                self.slot = Some(started.slot);
                self.write().await
            }
            Err(IdentifyRefusal::Close(code)) => Err(Stop::Close(code)),
            Err(IdentifyRefusal::Budget(_)) => self.refuse().await,
        }
    }

    async fn refuse(&mut self) -> Result<(), Stop> {
        self.connection.refused(self.gateway.now_ms());
        self.send(vec![event::invalid_session(false)]).await
    }

    async fn resume(&mut self, resume: Resume) -> Result<(), Stop> {
        if !self.gateway.is_valid_token(&resume.token) {
            return Err(Stop::Close(CloseCode::AuthenticationFailed));
        }
        let holder = crate::session::id::holder(&resume.session_id);
        if holder.is_some_and(|holder| holder != self.gateway.config.role.member_id) {
            return Err(Stop::Elsewhere(resume));
        }
        match self.gateway.resume(&resume, self.number) {
            Ok(slot) => {
                self.connection.established();
                self.slot = Some(slot);
                self.write().await
            }
            Err(ResumeRefusal::InvalidSequence) => Err(Stop::Close(CloseCode::InvalidSequence)),
            Err(_) => self.refuse().await,
        }
    }

    /// Sends what the session has for this connection, at the socket's pace.
    async fn write(&mut self) -> Result<(), Stop> {
        let Some(slot) = self.slot.clone() else {
            return Ok(());
        };
        let mut batches = 0;
        loop {
            let taken = slot.machine.lock().take(self.number, BATCH_EVENTS, BATCH_BYTES);
            match taken {
                Taken::Events(events) if events.is_empty() => return Ok(()),
                Taken::Events(events) if batches == BATCHES_AT_A_TIME => {
                    // What was taken must go out; the rest waits for its turn behind what the client has to say.
                    slot.wake.notify_one();
                    return self.send(frames(&events)).await;
                }
                Taken::Events(events) => {
                    self.send(frames(&events)).await?;
                    batches += 1;
                }
                Taken::Lagging => return Err(self.lag_close()),
                Taken::Replaced => return Err(Stop::Close(CloseCode::Unknown)),
                Taken::Ended(why) => {
                    tracing::info!(session = %slot.id, reason = why.label(), "a connected session ended");
                    self.gateway.forget_session(&slot);
                    self.slot = None;
                    self.connection.refused(self.gateway.now_ms());
                    return self.send(vec![event::invalid_session(false)]).await;
                }
            }
        }
    }

    fn lag_close(&self) -> Stop {
        self.gateway.metrics.lag_closes.inc();
        Stop::Close(CloseCode::Unknown)
    }

    /// Sends payloads; a socket that takes nothing for long, or lets live events pile up, is closed resumably.
    async fn send(&mut self, payloads: Vec<String>) -> Result<(), Stop> {
        let stalled = {
            let mut sending = std::pin::pin!(self.transport.send(payloads));
            let deadline = Instant::now() + STALL;
            loop {
                tokio::select! {
                    biased;
                    sent = &mut sending => return sent.map_err(|Gone| Stop::Lost),
                    () = tokio::time::sleep(Duration::from_millis(500)) => {
                        let lagging = self.slot.as_ref().is_some_and(|slot| slot.machine.lock().is_lagging());
                        if lagging || Instant::now() >= deadline {
                            break lagging;
                        }
                    }
                }
            }
        };
        tracing::info!(connection = self.number, lagging = stalled, "a socket does not take what it is sent");
        Err(self.lag_close())
    }

    async fn end(&mut self, stop: Stop) -> Outcome {
        let outcome = match stop {
            Stop::Close(code) => {
                self.gateway.metrics.closed(code);
                self.release(None);
                self.transport.close(code).await;
                Outcome::Done
            }
            Stop::ClientClosed(code) => {
                self.release(code);
                self.transport.finish().await;
                Outcome::Done
            }
            Stop::Lost => Outcome::Done,
            Stop::Elsewhere(resume) => Outcome::Elsewhere(resume),
        };
        self.release(None);
        outcome
    }

    /// Lets go of the session: it ends if the client said that it is done, and can be resumed otherwise.
    fn release(&mut self, client_code: Option<u16>) {
        let Some(slot) = self.slot.take() else {
            return;
        };
        if client_close_ends_session(client_code) {
            slot.machine.lock().end_from(self.number, Ended::ClosedByClient);
            if slot.machine.lock().has_ended() {
                self.gateway.metrics.sessions_ended(Ended::ClosedByClient);
                self.gateway.forget_session(&slot);
            }
        } else {
            slot.machine.lock().detach(self.number, self.gateway.now_ms());
        }
    }
}

fn frames(events: &[(u64, Arc<Event>)]) -> Vec<String> {
    events.iter().map(|(sequence, event)| event.frame(*sequence)).collect()
}

async fn woken(slot: Option<&Arc<Slot>>) {
    match slot {
        Some(slot) => slot.wake.notified().await,
        None => std::future::pending().await,
    }
}

async fn decided(deciding: Option<&mut Deciding>) -> Decision {
    match deciding {
        Some(deciding) => deciding.await,
        None => std::future::pending().await,
    }
}

impl<T> Drop for Driver<T> {
    /// A connection that is dropped in the middle (its task was cancelled) leaves its session resumable.
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            slot.machine.lock().detach(self.number, self.gateway.now_ms());
        }
    }
}
