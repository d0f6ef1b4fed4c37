//! A gateway of one guild: holds a position, drops what it has, and remembers what it was told.

use std::time::Duration;

use cell_proto::v1::change::Kind;
use cell_proto::v1::guild_service_client::GuildServiceClient;
use cell_proto::v1::link_down::Kind as Down;
use cell_proto::v1::link_up::Kind as Up;
use cell_proto::v1::{Attach, GuildSnapshot, LinkDown, LinkHello, LinkUp, Moved, Position};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

use super::fleet::{Fleet, GUILD, user};

#[derive(Default)]
pub struct Gateway {
    pub position: Option<Position>,
    pub snapshot: Option<GuildSnapshot>,
    pub heard: Vec<String>,
    pub moved: Option<Moved>,
    pub standby: Option<Moved>,
    last_us: i64,
    link: Option<(mpsc::Sender<LinkUp>, Streaming<LinkDown>)>,
}

impl Gateway {
    pub async fn attach(&mut self, address: &str) {
        let (up, frames) = mpsc::channel(64);
        let hello = LinkHello { member_id: "gateway".into(), cell: "a".into(), incarnation: 1 };
        up.send(LinkUp { kind: Some(Up::Hello(hello)) }).await.unwrap();
        let attach = Attach {
            guild_id: GUILD,
            log: String::new(),
            position: self.position.clone(),
            user_ids: vec![user("ann").id, user("bob").id],
            standby: false,
        };
        up.send(LinkUp { kind: Some(Up::Attach(attach)) }).await.unwrap();
        let mut client = GuildServiceClient::connect(format!("http://{address}")).await.unwrap();
        let down = client.link(ReceiverStream::new(frames)).await.unwrap().into_inner();
        self.link = Some((up, down));
    }

    /// Takes frames until the condition holds, attaching anew whenever the guild or the link is gone; at most 20 s.
    pub async fn until(&mut self, fleet: &Fleet, condition: impl Fn(&Self) -> bool) {
        let work = async {
            while !condition(self) {
                let frame = match &mut self.link {
                    Some((_, down)) => down.message().await.ok().flatten(),
                    None => None,
                };
                match frame.and_then(|frame| frame.kind) {
                    Some(kind) => self.take(kind),
                    None => self.link = None,
                }
                if self.link.is_none() && !condition(self) {
                    tokio::time::sleep(Duration::from_millis(30)).await;
                    if let Some(address) = fleet.winner() {
                        self.attach(&address).await;
                    }
                }
            }
        };
        tokio::time::timeout(Duration::from_secs(20), work).await.expect("the frames come in time");
    }

    fn take(&mut self, kind: Down) {
        match kind {
            Down::Snapshot(snapshot) => {
                assert!(self.position.is_none(), "a gateway with a position gets what follows it, not a snapshot");
                self.position = snapshot.position.clone();
                self.snapshot = Some(snapshot);
            }
            Down::Events(events) => {
                for event in events.events {
                    let entry = event.entry.unwrap();
                    if entry.timestamp_us <= self.last_us {
                        continue;
                    }
                    self.last_us = entry.timestamp_us;
                    self.position = event.position;
                    if let Some(Kind::MessageCreated(created)) = entry.change.unwrap().kind {
                        self.heard.push(created.message.unwrap().content);
                    }
                }
            }
            Down::Moved(moved) => {
                self.moved = Some(moved);
                self.link = None;
            }
            Down::Standby(standby) => self.standby = Some(standby),
            Down::Refused(_) => self.link = None,
            Down::Members(_) | Down::Typing(_) => {}
        }
    }
}
