//! Fetches pages with reqwest, and waits in line before each: all processes together ask a host at most twice a second.
//!
//! ```sh
//! make run   # a server with redis-ratelimit
//! cargo run --manifest-path examples/rust/Cargo.toml --bin polite http://example.com/ http://example.com/about
//! ```

use std::time::Duration;

use redis_ratelimit_client::{Limiter, Rate};
use reqwest::{Client, Response, Url};

type Outcome<T> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Fetches a page as soon as its host may be asked. Dropping the future leaves the line.
async fn fetch(limiter: &Limiter, rate: &Rate, client: &Client, url: Url) -> Outcome<Response> {
    let key = format!("fetch:{}", url.host_str().unwrap_or_default());
    let turn = limiter.take(&key, rate).block(Duration::from_secs(30)).await?;
    if !turn.is_allowed() {
        return Err(format!("{url}: no turn for the next {:?}", turn.retry_after).into());
    }
    Ok(client.get(url).send().await?)
}

#[tokio::main]
async fn main() -> Outcome<()> {
    let server = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1/".into());
    let (limiter, rate) = (Limiter::open(server)?, Rate::per("2/s")?.capacity(1)?);
    let client = Client::new();
    for url in std::env::args().skip(1) {
        let page = fetch(&limiter, &rate, &client, url.parse()?).await?;
        println!("{} {url}", page.status());
    }
    Ok(())
}

#[cfg(test)]
#[tokio::test]
async fn no_host_is_asked_more_often_than_the_rate_allows() {
    let app = axum::Router::new().route("/", axum::routing::get(|| async { "page" }));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url: Url = format!("http://{}/", listener.local_addr().unwrap()).parse().unwrap();
    tokio::spawn(async move { axum::serve(listener, app).await });
    let limiter = redis_ratelimit_client::MemoryLimiter::new();
    let rate = Rate::per("20/s").unwrap().capacity(1).unwrap();
    let began = std::time::Instant::now();
    for _ in 0..4 {
        let page = fetch(&limiter, &rate, &Client::new(), url.clone()).await.unwrap();
        assert_eq!(page.text().await.unwrap(), "page");
    }
    let took = began.elapsed();
    assert!((Duration::from_millis(150)..Duration::from_secs(30)).contains(&took), "{took:?}");
}
