//! Over real sockets, with certificates made for the test.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_tls::{ClientAuth, ClientTls, IdentityFiles, Listener, PortConnections, PortLimits, ServerTls, TlsError};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const TIMEOUT: Duration = Duration::from_secs(20);

struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca.pem"), issuer.pem()).unwrap();
        Self { issuer, folder }
    }

    fn ca_file(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// Writes a certificate for the names; its serial number tells one from another.
    fn write(&self, name: &str, hosts: &[&str], serial: u8) -> IdentityFiles {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.serial_number = Some(vec![serial].into());
        let key = KeyPair::generate().unwrap();
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let files = self.files(name);
        fs::write(&files.cert_file, certificate.pem()).unwrap();
        fs::write(&files.key_file, key.serialize_pem()).unwrap();
        files
    }

    fn files(&self, name: &str) -> IdentityFiles {
        let path = |end: &str| self.folder.path().join(format!("{name}{end}"));
        IdentityFiles { cert_file: path(".pem"), key_file: path("-key.pem") }
    }
}

/// Accepts for ever, and answers whether the peer showed a certificate.
async fn serve(tls: ServerTls) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = PortConnections::new(PortLimits::default());
    let mut listener = Listener::new(listener, Some(tls), port).unwrap();
    let address = listener.address().to_string();
    tokio::spawn(async move {
        loop {
            let (mut stream, peer, _counted) = listener.accept().await;
            stream.write_all(if peer.has_client_cert { b"y" } else { b"n" }).await.ok();
        }
    });
    address
}

/// What the server says, and the certificate that it showed.
async fn connect_and_read(client: &ClientTls, address: &str) -> std::io::Result<(u8, Vec<u8>)> {
    let mut stream = tokio::time::timeout(TIMEOUT, client.connect(address)).await??;
    let shown = stream.get_ref().1.peer_certificates().unwrap()[0].to_vec();
    Ok((stream.read_u8().await?, shown))
}

#[tokio::test]
async fn both_sides_are_vouched_for_and_strangers_are_not_let_in() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let node = ours.write("node", &["127.0.0.1"], 1);
    let address = serve(ServerTls::load(node.clone(), ClientAuth::Required(ours.ca_file())).unwrap()).await;
    let ask_as = async |ca: &Authority, identity| {
        connect_and_read(&ClientTls::load(ca.ca_file(), identity).unwrap(), &address).await
    };
    assert_eq!(ask_as(&ours, node.clone()).await.unwrap().0, b'y');
    let stranger = theirs.write("stranger", &["127.0.0.1"], 2);
    assert!(ask_as(&ours, stranger.clone()).await.is_err(), "the server does not know who signed it");
    assert!(ask_as(&theirs, node).await.is_err(), "the client does not know who signed the server's");
    let elsewhere = ours.write("elsewhere", &["node.example"], 3);
    let wrong_host = serve(ServerTls::load(elsewhere, ClientAuth::Disabled).unwrap()).await;
    let client = ClientTls::load(ours.ca_file(), ours.files("node")).unwrap();
    assert!(connect_and_read(&client, &wrong_host).await.is_err(), "the certificate is for another host");
}

#[tokio::test]
async fn who_does_not_speak_keeps_nobody_out() {
    let ours = Authority::new();
    let node = ours.write("node", &["127.0.0.1"], 1);
    let address = serve(ServerTls::load(node.clone(), ClientAuth::Disabled).unwrap()).await;
    let mut silent = Vec::new();
    for _ in 0..200 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    let client = ClientTls::load(ours.ca_file(), node).unwrap();
    assert_eq!(connect_and_read(&client, &address).await.unwrap().0, b'n');
    // The first of them was ended for the others.
    let mut byte = [0];
    let closed = silent[0].read(&mut byte);
    assert_eq!(tokio::time::timeout(TIMEOUT, closed).await.unwrap().unwrap_or(0), 0);
}

#[tokio::test]
async fn silent_peers_of_a_shared_configuration_keep_no_handshake_waiting() {
    let ours = Authority::new();
    let node = ours.write("node", &["127.0.0.1"], 1);
    let tls = ServerTls::load(node.clone(), ClientAuth::Disabled).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let tls = tls.clone();
            tokio::spawn(async move {
                if let Ok(mut stream) = tls.accept(stream, |_| true).await {
                    stream.write_all(b"n").await.ok();
                }
            });
        }
    });
    let mut silent = Vec::new();
    for _ in 0..100 {
        silent.push(TcpStream::connect(&address).await.unwrap());
    }
    let client = ClientTls::load(ours.ca_file(), node).unwrap();
    let began = std::time::Instant::now();
    assert_eq!(connect_and_read(&client, &address).await.unwrap().0, b'n');
    // Silence alone ends after 10 s.
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_new_certificate_is_shown_without_a_restart_and_a_broken_one_is_not() {
    let ours = Authority::new();
    let node = ours.write("node", &["127.0.0.1"], 1);
    let address = serve(ServerTls::load(node.clone(), ClientAuth::Disabled).unwrap()).await;
    let client = ClientTls::load(ours.ca_file(), ours.write("client", &["client"], 9)).unwrap();
    let first = connect_and_read(&client, &address).await.unwrap().1;
    fs::write(&node.cert_file, "nothing").unwrap();
    assert_eq!(connect_and_read(&client, &address).await.unwrap().1, first);
    ours.write("node", &["127.0.0.1"], 2);
    wait_until(async || connect_and_read(&client, &address).await.unwrap().1 != first).await;
}

async fn wait_until(holds: impl AsyncFn() -> bool) {
    let looking = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, looking).await.expect("it comes true in good time");
}

#[tokio::test]
async fn files_that_cannot_be_used_are_named() {
    let ours = Authority::new();
    let (one, other) = (ours.write("one", &["a"], 1), ours.write("other", &["b"], 2));
    let load = |cert_file: &Path, key_file: &Path| {
        let files = IdentityFiles { cert_file: cert_file.to_owned(), key_file: key_file.to_owned() };
        ServerTls::load(files, ClientAuth::Disabled).unwrap_err()
    };
    let missing = load(Path::new("/nowhere.pem"), &one.key_file);
    assert!(matches!(&missing, TlsError::Unreadable { .. }) && missing.to_string().contains("/nowhere.pem"));
    assert!(matches!(load(&one.key_file, &one.key_file), TlsError::Empty { what: "certificate", .. }));
    assert!(matches!(load(&one.cert_file, &one.cert_file), TlsError::Empty { what: "private key", .. }));
    assert!(matches!(load(&one.cert_file, &other.key_file), TlsError::Unusable { .. }));
}
