//! An internet for tests: a DNS server, web servers and others in a network namespace of its own, and a second one from
//! which a gateway reaches them (`uplink_namespace`). The machine's own network is not touched.
//!
//! Every address of 198.51.100.0/24 and 198.18.0.0/16 answers, and so do private and special ones that nobody may reach:
//! whatever gets there is seen. The DNS server is 198.51.100.53.

mod capture;
mod certificates;
mod names;
mod netns;
mod plain;
mod web;

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use tokio::net::{TcpListener, UdpSocket};
use tokio::task::JoinSet;

pub use capture::{Capture, Packet};
use certificates::Authority;
use names::Names;
use netns::Namespaces;
use web::Files;

/// Its one DNS server.
const RESOLVER: &str = "198.51.100.53";

/// Who was reached, by destination.
#[derive(Debug, Clone, Default)]
pub(crate) struct Arrivals(Arc<Mutex<Vec<SocketAddrV4>>>);

impl Arrivals {
    fn add(&self, to: SocketAddr) {
        if let SocketAddr::V4(to) = to {
            self.0.lock().expect("nobody panics while holding it").push(to);
        }
    }
}

/// A running test internet; dropped, it is gone.
#[derive(Debug)]
pub struct Internet {
    namespaces: Namespaces,
    names: Names,
    files: Files,
    authority: Arc<Authority>,
    authority_file: tempfile::NamedTempFile,
    arrivals: Arrivals,
    servers: JoinSet<()>,
}

impl Internet {
    /// Makes it. `None`, with a loud reason, without root.
    ///
    /// # Panics
    /// When namespaces cannot be made.
    #[must_use]
    pub fn start() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED: a test internet needs root");
            return None;
        }
        let namespaces = Namespaces::new();
        let authority = Authority::new();
        let authority_file = tempfile::NamedTempFile::new().expect("a temporary file");
        std::fs::write(authority_file.path(), authority.pem()).expect("write a temporary file");
        let mut internet = Self {
            namespaces,
            names: Names::default(),
            files: Files::default(),
            authority,
            authority_file,
            arrivals: Arrivals::default(),
            servers: JoinSet::new(),
        };
        let (files, arrivals) = (Arc::clone(&internet.files), internet.arrivals.clone());
        let http = internet.listener(80);
        internet.servers.spawn(web::serve(http, None, Arc::clone(&files), arrivals.clone()));
        let https = internet.listener(443);
        let tls = Some(internet.authority.acceptor());
        internet.servers.spawn(web::serve(https, tls, files, arrivals.clone()));
        for (port, behaviour) in plain::BEHAVIOURS {
            let listener = internet.listener(*port);
            internet.servers.spawn(plain::serve(listener, *behaviour, arrivals.clone()));
        }
        let dns_udp = internet.udp(&format!("{RESOLVER}:53"));
        internet.servers.spawn(names::over_udp(dns_udp, Arc::clone(&internet.names)));
        let dns_tcp = internet.tcp(&format!("{RESOLVER}:53"));
        internet.servers.spawn(names::over_tcp(dns_tcp, Arc::clone(&internet.names)));
        Some(internet)
    }

    /// Flags for `superserve up` that let sandboxes out into it.
    #[must_use]
    pub fn flags(&self) -> Vec<String> {
        vec![
            "--uplink-namespace".to_owned(),
            self.uplink_path(),
            "--resolvers".to_owned(),
            RESOLVER.to_owned(),
        ]
    }

    /// The same for a platform whose broker believes its services.
    #[must_use]
    pub fn trusted_flags(&self) -> Vec<String> {
        let file = self.authority_file.path().display().to_string();
        [self.flags(), vec!["--service-ca-file".to_owned(), file]].concat()
    }

    /// The namespace its flags name, for programs that enter it.
    #[must_use]
    pub fn uplink_path(&self) -> String {
        netns::path_of(&self.namespaces.uplink)
    }

    /// The gateway's own address in it, which is its host's address as far as sandboxes are concerned.
    ///
    /// # Panics
    /// Never.
    #[must_use]
    pub fn host_address(&self) -> Ipv4Addr {
        netns::UPLINK.parse().expect("an IPv4 address")
    }

    /// Gives a name addresses.
    ///
    /// # Panics
    /// When they are none.
    pub fn name(&self, name: &str, addresses: &[&str]) {
        self.name_changing(name, &[addresses]);
    }

    /// Gives a name other addresses each time somebody asks; the last ones stay.
    ///
    /// # Panics
    /// When they are none.
    pub fn name_changing(&self, name: &str, answers: &[&[&str]]) {
        self.names.lock().expect("nobody panics while holding it").set(name, answers);
    }

    /// Gives a name addresses that may be remembered for some seconds.
    ///
    /// # Panics
    /// When they are none.
    pub fn name_for(&self, name: &str, addresses: &[&str], seconds: u32) {
        self.name(name, addresses);
        self.names.lock().expect("nobody panics while holding it").set_age(name, seconds);
    }

    /// Gives a name an IPv6 address.
    ///
    /// # Panics
    /// When it is none.
    pub fn name_six(&self, name: &str, address: &str) {
        self.names.lock().expect("nobody panics while holding it").set_six(name, address);
    }

    /// The names that were asked for, in lower case.
    ///
    /// # Panics
    /// When a server has.
    #[must_use]
    pub fn asked(&self) -> Vec<String> {
        self.names.lock().expect("nobody panics while holding it").asked()
    }

    /// Puts a file onto the web servers, under one host name, which then has files only.
    ///
    /// # Panics
    /// When a server has.
    pub fn file(&self, host: &str, path: &str, content: impl Into<Bytes>) {
        let mut files = self.files.lock().expect("nobody panics while holding it");
        files.entry(host.to_owned()).or_default().files.insert(path.to_owned(), content.into());
    }

    /// Refuses all requests to a host that do not have this header with this value; the others are welcome.
    ///
    /// # Panics
    /// When a server has.
    pub fn lock(&self, host: &str, header: &str, value: &str) {
        let mut files = self.files.lock().expect("nobody panics while holding it");
        files.entry(host.to_owned()).or_default().lock = Some((header.to_owned(), value.to_owned()));
    }

    /// Connections that arrived anywhere, by destination.
    ///
    /// # Panics
    /// When a server has.
    #[must_use]
    pub fn arrivals(&self) -> Vec<SocketAddrV4> {
        self.arrivals.0.lock().expect("nobody panics while holding it").clone()
    }

    /// The certificate of its authority, PEM.
    #[must_use]
    pub fn authority(&self) -> &str {
        self.authority.pem()
    }

    /// Listens to what leaves the uplink from now on.
    ///
    /// # Panics
    /// When packets cannot be captured.
    #[must_use]
    pub fn capture(&self) -> Capture {
        Capture::start(&self.namespaces.uplink)
    }

    /// A listener on every address of it, for a test's own server.
    ///
    /// # Panics
    /// When the port is taken.
    #[must_use]
    pub fn listener(&self, port: u16) -> TcpListener {
        self.tcp(&format!("0.0.0.0:{port}"))
    }

    /// A listener on the gateway's host.
    ///
    /// # Panics
    /// When the port is taken.
    #[must_use]
    pub fn host_listener(&self, port: u16) -> TcpListener {
        tcp_in(&self.namespaces.uplink, &format!("0.0.0.0:{port}"))
    }

    /// Connects from the uplink, as the gateway does, but without it.
    ///
    /// # Errors
    /// The kernel's.
    pub async fn connect(&self, to: SocketAddrV4) -> io::Result<tokio::net::TcpStream> {
        let socket = Namespaces::inside(&self.namespaces.uplink, tokio::net::TcpSocket::new_v4)?;
        socket.connect(to.into()).await
    }

    fn tcp(&self, address: &str) -> TcpListener {
        tcp_in(&self.namespaces.internet, address)
    }

    fn udp(&self, address: &str) -> UdpSocket {
        let socket = Namespaces::inside(&self.namespaces.internet, || {
            let socket = std::net::UdpSocket::bind(address)?;
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        UdpSocket::from_std(socket.expect("a free port")).expect("a runtime")
    }
}

fn tcp_in(namespace: &File, address: &str) -> TcpListener {
    let listener = Namespaces::inside(namespace, || {
        let listener = std::net::TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    TcpListener::from_std(listener.expect("a free port")).expect("a runtime")
}
