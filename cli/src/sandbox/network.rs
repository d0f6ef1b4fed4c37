//! Which 127.x.0.0/16 a sandbox lives on. Each sandbox reserves one in a registry shared by the machine's users, so that two never
//! mix; a reservation holds as long as its state directory says the same. Never starts or stops anything.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The second octets to choose from: 127.0.0.0/16 is everybody's, and 127.127.0.0/16 and above are left alone.
pub const OCTETS: std::ops::RangeInclusive<u8> = 64..=126;

/// Nodes a network has room for: node n has 127.x.n.0/24.
pub const MAX_NODES: u8 = 250;

/// Why no network was reserved.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The registry or the state directory cannot be used.
    #[error("failed to use {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// Every network is reserved or has something listening on it.
    #[error(
        "no free network from 127.64.0.0/16 to 127.126.0.0/16; delete a sandbox with cellctl sandbox down --delete"
    )]
    NoneFree,
}

/// One 127.x.0.0/16.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Network {
    octet: u8,
}

impl Network {
    /// Network with this second octet, if it is one to choose from.
    pub fn of_octet(octet: u8) -> Option<Self> {
        OCTETS.contains(&octet).then_some(Self { octet })
    }

    /// Where the etcd and Kubernetes APIs listen.
    pub fn control_address(self) -> Ipv4Addr {
        Ipv4Addr::new(127, self.octet, 0, 1)
    }

    /// The address of node `number` (from 1); the entry is reached on it.
    pub fn node_address(self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, self.octet, number, 1)
    }

    /// The addresses of the Pods of node `number` (from 1).
    pub fn pod_cidr(self, number: u8) -> String {
        format!("127.{}.{number}.0/24", self.octet)
    }

    /// Where database `number` (from 1) of a demo listens, beside the APIs.
    pub fn database_address(self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, self.octet, 0, 10 + number)
    }

    /// A source address for load of our own: the nodes never hand out 127.x.251.0/24 and above.
    pub fn client_address(self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, self.octet, 251 + number / 254 % 4, 1 + number % 254)
    }
}

/// Where the reservations of all sandboxes of this machine are.
pub fn registry() -> PathBuf {
    std::env::temp_dir().join("cellplane-networks")
}

/// The network recorded in a state directory.
pub fn recorded(state: &Path) -> Option<Network> {
    fs::read_to_string(state.join("network")).ok()?.trim().parse().ok().and_then(Network::of_octet)
}

/// Reserves a network for the sandbox in `state`: the one it had, if nobody else has it by now, else the first free one. `is_free`
/// tells whether nothing listens there.
///
/// # Errors
/// [`NetworkError`].
pub fn reserve(registry: &Path, state: &Path, is_free: impl Fn(Network) -> bool) -> Result<Network, NetworkError> {
    let _lock = lock(registry)?;
    let mine = recorded(state).filter(|network| !reserved_by_another(registry, state, *network));
    let free = || {
        OCTETS
            .filter_map(Network::of_octet)
            .find(|network| !reserved_by_another(registry, state, *network) && is_free(*network))
    };
    let network = mine.or_else(free).ok_or(NetworkError::NoneFree)?;
    write(&registry.join(network.octet.to_string()), &state.to_string_lossy())?;
    write(&state.join("network"), &network.octet.to_string())?;
    Ok(network)
}

/// Gives the reservation of `state` back.
///
/// # Errors
/// [`NetworkError::Io`].
pub fn release(registry: &Path, state: &Path) -> Result<(), NetworkError> {
    let _lock = lock(registry)?;
    if let Some(network) = recorded(state)
        && !reserved_by_another(registry, state, network)
    {
        let _ = fs::remove_file(registry.join(network.octet.to_string()));
        let _ = fs::remove_file(state.join("network"));
    }
    Ok(())
}

/// A reservation whose state directory is gone, or has another network by now, is nobody's.
fn reserved_by_another(registry: &Path, state: &Path, network: Network) -> bool {
    let Ok(holder) = fs::read_to_string(registry.join(network.octet.to_string())) else {
        return false;
    };
    Path::new(&holder) != state && recorded(Path::new(&holder)) == Some(network)
}

fn lock(registry: &Path) -> Result<File, NetworkError> {
    let failed = |source| NetworkError::Io { path: registry.to_owned(), source };
    if !registry.exists() {
        fs::create_dir_all(registry).map_err(failed)?;
        // Shared by the machine's users, as /tmp is.
        let _ = fs::set_permissions(registry, Permissions::from_mode(0o1777));
    }
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o666)
        .open(registry.join("lock"))
        .map_err(failed)?;
    file.lock().map_err(failed)?;
    Ok(file)
}

fn write(path: &Path, text: &str) -> Result<(), NetworkError> {
    fs::write(path, text).map_err(|source| NetworkError::Io { path: path.to_owned(), source })
}

/// Whether nobody else's sandbox is on the network, as far as an open port tells.
pub fn nothing_listens(network: Network) -> bool {
    [2379, 6443].into_iter().all(|port| !answers(network.control_address(), port))
}

/// The first of the ports on which something of ours could listen.
pub fn first_free_port(address: Ipv4Addr, ports: &[u16]) -> Option<u16> {
    ports.iter().copied().find(|port| can_listen(address, *port))
}

fn can_listen(address: Ipv4Addr, port: u16) -> bool {
    TcpListener::bind(SocketAddr::from((address, port))).is_ok()
}

/// A wildcard listener of the user's answers on every loopback address: it costs us the port, not the network. A listener on exactly
/// this address and not on 127.0.0.1 is another sandbox.
fn answers(address: Ipv4Addr, port: u16) -> bool {
    let connects = |address: Ipv4Addr| {
        std::net::TcpStream::connect_timeout(&SocketAddr::from((address, port)), std::time::Duration::from_millis(200))
            .is_ok()
    };
    connects(address) && !connects(Ipv4Addr::new(127, 255, 255, 254))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixture {
        folder: tempfile::TempDir,
    }

    impl Fixture {
        fn new() -> Self {
            Self { folder: tempfile::tempdir().unwrap() }
        }
        fn registry(&self) -> PathBuf {
            self.folder.path().join("registry")
        }
        fn state(&self, name: &str) -> PathBuf {
            let state = self.folder.path().join(name);
            fs::create_dir_all(&state).unwrap();
            state
        }
        fn reserve(&self, name: &str) -> Network {
            reserve(&self.registry(), &self.state(name), |_| true).unwrap()
        }
    }

    #[test]
    fn two_sandboxes_never_share_a_network_and_each_keeps_its_own() {
        let fixture = Fixture::new();
        let (first, second) = (fixture.reserve("a"), fixture.reserve("b"));
        assert_ne!(first, second);
        assert_eq!((fixture.reserve("a"), fixture.reserve("b")), (first, second));
    }

    #[test]
    fn reservations_made_at_once_are_distinct() {
        let fixture = Fixture::new();
        let networks: Vec<Network> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|number| {
                    scope.spawn({
                        let fixture = &fixture;
                        move || fixture.reserve(&format!("s{number}"))
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let octets: std::collections::HashSet<u8> = networks.iter().map(|network| network.octet).collect();
        assert_eq!(octets.len(), 8);
    }

    #[test]
    fn a_deleted_sandbox_frees_its_network_even_when_it_never_said_so() {
        let fixture = Fixture::new();
        let first = fixture.reserve("a");
        fs::remove_dir_all(fixture.folder.path().join("a")).unwrap();
        assert_eq!(fixture.reserve("b"), first);
        release(&fixture.registry(), &fixture.state("b")).unwrap();
        assert_eq!(fixture.reserve("c"), first);
    }

    #[test]
    fn a_network_somebody_listens_on_is_passed_over() {
        let fixture = Fixture::new();
        let network = reserve(&fixture.registry(), &fixture.state("a"), |network| network.octet >= 70).unwrap();
        assert_eq!(network.octet, 70);
        let none = reserve(&fixture.registry(), &fixture.state("b"), |_| false);
        assert!(matches!(none, Err(NetworkError::NoneFree)));
    }

    #[test]
    fn a_network_lost_to_another_is_replaced() {
        let fixture = Fixture::new();
        let first = fixture.reserve("a");
        // A cleared /tmp forgets reservations; another sandbox may then come first.
        fs::remove_dir_all(fixture.registry()).unwrap();
        assert_eq!(fixture.reserve("b"), first);
        assert_ne!(fixture.reserve("a"), first);
    }

    #[test]
    fn a_port_in_use_is_passed_over() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let other = TcpListener::bind("127.0.0.1:0").unwrap();
        let (taken, free) = (listener.local_addr().unwrap().port(), other.local_addr().unwrap().port());
        drop(other);
        assert_eq!(first_free_port(Ipv4Addr::LOCALHOST, &[taken, free]), Some(free));
        assert_eq!(first_free_port(Ipv4Addr::LOCALHOST, &[taken]), None);
    }

    #[test]
    fn nodes_pods_and_clients_have_addresses_of_their_own() {
        let network = Network::of_octet(70).unwrap();
        assert_eq!(network.control_address().to_string(), "127.70.0.1");
        assert_eq!(
            (network.node_address(3).to_string(), network.pod_cidr(3)),
            ("127.70.3.1".into(), "127.70.3.0/24".into())
        );
        let clients: std::collections::HashSet<Ipv4Addr> =
            (0..=255).map(|number| network.client_address(number)).collect();
        assert_eq!(clients.len(), 256);
        assert!(clients.iter().all(|address| address.octets()[2] > MAX_NODES));
        assert_eq!(Network::of_octet(63), None);
        assert_eq!(Network::of_octet(127), None);
    }
}
