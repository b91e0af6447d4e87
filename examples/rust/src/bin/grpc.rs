//! A gRPC server on tonic that limits the calls of each client address. Here it serves the standard health service.
//!
//! ```sh
//! make run   # a server with redis-ratelimit
//! cargo run --manifest-path examples/rust/Cargo.toml --bin grpc
//! grpcurl -plaintext localhost:50051 grpc.health.v1.Health/Check
//! ```

use std::net::Ipv4Addr;

use redis_ratelimit_client::http::tower::{RateLimitLayer, Respond};
use redis_ratelimit_client::http::{client_address, Problem};
use redis_ratelimit_client::{Clause, Limiter, Rate};
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codegen::http::Response;
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::Server;
use tonic::Status;

type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Responds to denied calls with a status of gRPC.
#[derive(Clone)]
struct GrpcStatus;

impl Respond<Body> for GrpcStatus {
    fn respond(&self, problem: &Problem) -> Response<Body> {
        match problem.status() {
            429 => Status::resource_exhausted("the quota is exceeded").into_http(),
            _ => Status::unavailable("the quota could not be checked").into_http(),
        }
    }
}

async fn serve(listener: TcpListener, limiter: &Limiter, rate: Rate) -> Outcome {
    let limits = RateLimitLayer::new(limiter, move |request| {
        let peer = request.extensions.get::<TcpConnectInfo>()?.remote_addr()?;
        let address = client_address(Some(peer.ip()), [""; 0], 0, 64);
        Some(Clause::take(format!("grpc:{address}"), &rate))
    });
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(limits.respond(GrpcStatus)).add_service(health);
    Ok(server.serve_with_incoming(TcpIncoming::from(listener)).await?)
}

#[tokio::main]
async fn main() -> Outcome {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1/".into());
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 50051)).await?;
    println!("{}", listener.local_addr()?);
    serve(listener, &Limiter::open(url)?, Rate::per("100/s")?).await
}

#[cfg(test)]
#[tokio::test]
async fn a_client_that_calls_too_often_gets_resource_exhausted() {
    use tonic_health::pb::{health_client::HealthClient, HealthCheckRequest};

    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let limiter = redis_ratelimit_client::MemoryLimiter::new();
        serve(listener, &limiter, Rate::per("1/h").unwrap()).await.unwrap();
    });
    let server = tonic::transport::Endpoint::try_from(format!("http://{address}")).unwrap();
    let mut client = HealthClient::new(server.connect().await.unwrap());
    let answer = client.check(HealthCheckRequest::default()).await.unwrap();
    assert!(answer.metadata().contains_key("ratelimit"));
    let denied = client.check(HealthCheckRequest::default()).await.unwrap_err();
    assert_eq!(denied.code(), tonic::Code::ResourceExhausted);
    assert_eq!(denied.metadata().get("retry-after").unwrap(), "3600");
}
