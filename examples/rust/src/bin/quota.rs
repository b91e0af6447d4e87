//! A web service on axum with two limits: 5 requests a minute for each API key, and 1000 a minute for all together.
//!
//! ```sh
//! make run   # a server with redis-ratelimit
//! cargo run --manifest-path examples/rust/Cargo.toml --bin quota
//! curl -i -H 'x-api-key: alice' localhost:3000
//! ```

use std::net::Ipv4Addr;

use axum::routing::get;
use axum::Router;
use redis_ratelimit_client::http::tower::{RateLimitLayer, RateLimits};
use redis_ratelimit_client::transport::Servers;
use redis_ratelimit_client::{Clause, Error, Limiter, Rate, Unreachable, Window};

/// The routes, of which `/` is limited by key.
fn app(limiter: &Limiter) -> Result<Router, Error> {
    let (site, quota) = (Rate::per("1000/min")?, Window::per("5/min")?);
    let all = RateLimitLayer::new(limiter, move |_| [Clause::take("api", &site).name("site")]);
    let quota = RateLimitLayer::new(limiter, move |request| {
        let key = request.headers.get("x-api-key").and_then(|key| key.to_str().ok());
        let key = format!("api:{}", key.unwrap_or("anonymous"));
        [Clause::take(key, &quota).name("quota")]
    });
    let limited = Router::new().route("/", get(home)).layer(quota);
    Ok(limited.route("/health", get(|| async { "well" })).layer(all))
}

async fn home(limits: RateLimits) -> String {
    let left = limits.tightest().map_or(0, |reply| reply.remaining);
    format!("{left} requests left\n")
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1/".into());
    // While Redis does not answer, all requests are served.
    let limiter = Limiter::builder(Servers::open(url)?).unreachable(Unreachable::Allow).build()?;
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 3000)).await?;
    println!("http://{}", listener.local_addr()?);
    axum::serve(listener, app(&limiter)?).await?;
    Ok(())
}

#[cfg(test)]
#[tokio::test]
async fn each_key_has_its_quota_and_all_have_one_together() {
    let app = app(&redis_ratelimit_client::MemoryLimiter::new()).unwrap();
    let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let client = reqwest::Client::new();
    let get = |path: &str, key: &str| {
        client.get(format!("http://{address}{path}")).header("x-api-key", key).send()
    };
    for left in (0..5).rev() {
        let response = get("/", "alice").await.unwrap();
        let policy = response.headers()["ratelimit-policy"].to_str().unwrap();
        assert_eq!(policy, r#""site";q=1000;w=60, "quota";q=5;w=60"#);
        assert_eq!(response.text().await.unwrap(), format!("{left} requests left\n"));
    }
    let denied = get("/", "alice").await.unwrap();
    assert_eq!(denied.status(), 429);
    assert_eq!(denied.headers()["content-type"], "application/problem+json");
    assert!(denied.headers().contains_key("retry-after"));
    assert_eq!(get("/", "bob").await.unwrap().status(), 200);
    assert_eq!(get("/health", "alice").await.unwrap().text().await.unwrap(), "well");
}
