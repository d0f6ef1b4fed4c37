//! Runs the operators of one namespace: starts them behind wires, kills them when the plan says so, and sees to it that one that lost
//! its Lease ends by itself.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use cell_operator::{Config, RunError};
use cell_runtime::CancellationToken;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use super::wire::{Life, Order, Wire};
use super::{grpc_wire, kube_wire};
use crate::harness::free_port;

/// An operator that lost its Lease must have ended by then: its deadline, and room for a busy machine.
const ENDED: Duration = Duration::from_secs(25);

/// How often it is seen to that an operator runs.
const LOOK: Duration = Duration::from_millis(250);

pub enum Command {
    /// All die; one begins anew, undisturbed.
    Restart(oneshot::Sender<()>),
    /// Answers once only one is left.
    Alone(oneshot::Sender<()>),
}

struct Running {
    life: Arc<Life>,
    id: String,
    api_port: u16,
    task: JoinHandle<Result<(), RunError>>,
    stop: CancellationToken,
}

impl Running {
    async fn kill(self) -> (String, u16) {
        self.life.kill();
        if !self.task.is_finished() {
            self.task.abort();
            let _aborted = self.task.await;
        }
        self.stop.cancel();
        (self.id, self.api_port)
    }
}

/// The newest operator's port of metrics.
#[derive(Clone, Default)]
pub struct Admin(Arc<Mutex<Option<SocketAddr>>>);

impl Admin {
    /// Completed reconciles by kind; empty while the port is not open yet.
    pub async fn reconciles(&self) -> BTreeMap<String, u64> {
        let mut found = BTreeMap::new();
        let address = *self.0.lock();
        let Some(address) = address else { return found };
        // An operator that just ends answers nothing.
        let Some(text) = metrics(address).await else { return found };
        for line in text.lines().filter(|line| line.starts_with("cellplane_operator_reconciles_total{")) {
            let kind = line.split("kind=\"").nth(1).and_then(|rest| rest.split('"').next()).unwrap_or_default();
            let count = line.rsplit(' ').next().and_then(|count| count.parse::<u64>().ok()).unwrap_or_default();
            *found.entry(kind.to_owned()).or_default() += count;
        }
        found
    }
}

async fn metrics(address: SocketAddr) -> Option<String> {
    let mut socket = TcpStream::connect(address).await.ok()?;
    socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.ok()?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.ok()?;
    Some(answer)
}

pub struct Driver {
    pub wire: Arc<Wire>,
    pub etcd: String,
    pub cells: grpc_wire::Sender,
    pub admin: Admin,
    /// A loopback address of the stage's own: a port that is free there stays free.
    address: IpAddr,
    lives: Vec<Running>,
    number: u32,
}

/// By process and stage, so that tests beside this one have others.
fn own_address(stage: u32) -> IpAddr {
    let process = std::process::id();
    let byte = |number: u32| u8::try_from(number % 250).unwrap_or_default() + 2;
    IpAddr::V4(Ipv4Addr::new(127, byte(process), byte(process / 250), byte(stage)))
}

impl Driver {
    pub fn new(wire: Arc<Wire>, etcd: &str, cells: grpc_wire::Sender, admin: Admin, stage: u32) -> Self {
        let address = own_address(stage);
        Self { wire, etcd: etcd.to_owned(), cells, admin, address, lives: Vec::new(), number: 0 }
    }

    async fn begin(&mut self, id: String, api_port: u16) {
        self.number += 1;
        let life = Life::new(self.number, self.wire.clone());
        let kubernetes = kube_wire::serve(life.clone()).await;
        let etcd = grpc_wire::serve(&self.etcd, Arc::new(Mutex::new(Some(life.clone())))).await;
        let (admin_port, stop) = (free_port(), CancellationToken::new());
        let config = Config {
            namespace: self.wire.namespace.clone(),
            member_id: id.clone(),
            address: self.address,
            api_port,
            admin_port,
            etcd_endpoints: vec![etcd],
            cell_plaintext: false,
        };
        let kubernetes = kube::Config::new(format!("http://{kubernetes}").parse().unwrap());
        *self.cells.lock() = Some(life.clone());
        *self.admin.0.lock() = Some(SocketAddr::new(self.address, admin_port));
        let task = tokio::spawn(cell_operator::run(config, kubernetes, stop.clone()));
        self.lives.push(Running { life, id, api_port, task, stop });
    }

    /// Until nobody commands any more.
    pub async fn run(mut self, mut orders: mpsc::UnboundedReceiver<Order>, mut commands: mpsc::Receiver<Command>) {
        self.begin("cellplane-operator-0".to_owned(), free_port()).await;
        let mut tick = tokio::time::interval(LOOK);
        loop {
            tokio::select! {
                _ = tick.tick() => self.restart_ended().await,
                order = orders.recv() => match order {
                    Some(Order::Crash(number)) => self.crash(number).await,
                    Some(Order::Second(id)) => self.begin(id, free_port()).await,
                    None => break,
                },
                command = commands.recv() => match command {
                    Some(Command::Restart(done)) => {
                        let mut newest = None;
                        for one in self.lives.drain(..) {
                            newest = Some(one.kill().await);
                        }
                        let (id, port) = newest.unwrap_or_else(|| ("cellplane-operator-0".to_owned(), free_port()));
                        self.begin(id, port).await;
                        let _nobody_waits = done.send(());
                    }
                    Some(Command::Alone(done)) => {
                        self.alone().await;
                        let _nobody_waits = done.send(());
                    }
                    None => break,
                },
            }
        }
        for one in self.lives {
            one.kill().await;
        }
    }

    /// An operator that lost its Lease on a busy machine, with nobody to follow it, begins anew, as a kubelet sees to.
    async fn restart_ended(&mut self) {
        if self.lives.last().is_some_and(|newest| newest.task.is_finished())
            && let Some(ended) = self.lives.pop()
        {
            println!("{} ended by itself and begins anew: {:?}", ended.id, ended.task.await);
            let (id, port) = (ended.id, ended.api_port);
            self.begin(id, port).await;
        }
    }

    async fn crash(&mut self, number: u32) {
        let Some(at) = self.lives.iter().position(|one| one.life.number == number) else { return };
        let newest = at + 1 == self.lives.len();
        let (id, port) = self.lives.remove(at).kill().await;
        if newest {
            self.begin(id, port).await;
        }
    }

    /// Whoever does not lead any more has ended by itself, and said why.
    async fn alone(&mut self) {
        while self.lives.len() > 1 {
            let mut old = self.lives.remove(0);
            let number = old.life.number;
            match tokio::time::timeout(ENDED, &mut old.task).await {
                Ok(Ok(Err(RunError::Lost(_)))) => {}
                Ok(other) => self.wire.violate(format!("operator {number} lost its Lease and ended as {other:?}")),
                Err(_) => self.wire.violate(format!("operator {number} lost its Lease and did not end")),
            }
            old.kill().await;
        }
    }
}
