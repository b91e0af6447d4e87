//! The client on a server that it reaches by TLS.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use redis::{Client, TlsCertificates};
use redis_ratelimit_client::transport::Servers;
use redis_ratelimit_client::{Error, Limiter, Semaphore, Window};
use support::{server_binary, Server, Version};
use tokio::time::timeout;

use super::{until, waiting, PATIENCE};

/// Returns whether the server was built with TLS. One without it does not know the settings; another refuses the value.
fn knows_tls() -> bool {
    let refused = ["--port", "0", "--tls-port", "0", "--tls-auth-clients", "wrong"];
    let output = Command::new(server_binary()).args(refused).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    String::from_utf8_lossy(&text).contains("must be one of")
}

/// Makes a certificate of this machine, and its key, in a folder.
fn make_certificate(folder: &Path) {
    let made = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-nodes"])
        .args(["-pkeyopt", "ec_paramgen_curve:prime256v1"])
        .args(["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE", "-days", "2"])
        .args(["-keyout", "server.key", "-out", "server.crt"])
        .current_dir(folder)
        .output()
        .expect("openssl");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}

/// A server that listens for TLS too, and the port for it.
fn server_with_tls(folder: &Path) -> (Server, u16) {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let file = |name: &str| folder.join(name).display().to_string();
    let builder = Server::builder()
        .config(format!("tls-port {port}"))
        .config(format!("tls-cert-file {}", file("server.crt")))
        .config(format!("tls-key-file {}", file("server.key")))
        .config(format!("tls-ca-cert-file {}", file("server.crt")))
        .config("tls-auth-clients no");
    (builder.start(), port)
}

/// A limiter that trusts this certificate, or only those of the system.
fn limiter_of(port: u16, certificate: Option<Vec<u8>>, deadline: Duration) -> Limiter {
    let tls = TlsCertificates { client_tls: None, root_cert: certificate };
    let client = Client::build_with_tls(format!("rediss://127.0.0.1:{port}/"), tls).unwrap();
    Limiter::builder(Servers::from(client)).deadline(deadline).build().unwrap()
}

#[tokio::test]
async fn calls_waits_and_leases_go_over_tls() {
    if !knows_tls() {
        return Version::under_test().skip("it was built without TLS");
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = Server::builder().module(false).start();
    make_certificate(folder.dir());
    let (server, port) = server_with_tls(folder.dir());
    let certificate = std::fs::read(folder.dir().join("server.crt")).unwrap();
    let limiter = limiter_of(port, Some(certificate), PATIENCE);

    let window = Window::per("100/h").unwrap();
    assert_eq!(limiter.take("k", &window).quantity(3).await.unwrap().remaining, 97);

    // A call in line has a connection of its own, which is over TLS too.
    let jobs = Semaphore::new(1);
    let mut permit = limiter.acquire("jobs", &jobs).await.unwrap();
    let waits = {
        let (limiter, jobs) = (limiter.clone(), jobs.clone());
        tokio::spawn(async move { limiter.acquire("jobs", &jobs).block(PATIENCE).await.map(drop) })
    };
    until(|| async { waiting(&limiter, "jobs").await == 1 }).await;
    permit.release().await.unwrap();
    timeout(PATIENCE, waits).await.unwrap().unwrap().unwrap();

    let local = limiter.local("k", &window).lease(Duration::from_secs(60)).build().unwrap();
    assert!(local.take(5).await.unwrap().is_allowed());
    local.close().await.unwrap();
    assert_eq!(limiter.look("k", &window).await.unwrap().remaining, 92);
    let clients = support::text(&server.conn().cmd("CLIENT LIST"));
    assert!(clients.contains(&format!("laddr=127.0.0.1:{port}")), "{clients}");

    // Without the certificate the server is not trusted, and nothing is sent.
    let stranger = limiter_of(port, None, Duration::from_secs(4));
    let refused = stranger.take("k", &window).await.unwrap_err();
    assert!(matches!(&refused, Error::Unreachable { is_sent: false, .. }), "{refused:?}");
    assert!(refused.to_string().contains("certificate"), "{refused}");
}
