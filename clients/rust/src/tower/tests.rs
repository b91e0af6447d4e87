use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use ::tower::{service_fn, ServiceExt};

use super::*;
use crate::{MemoryLimiter, Rate, Window};

type Never = Result<Response<String>, Infallible>;

fn request() -> Request<String> {
    Request::new(String::new())
}

fn header<'a>(response: &'a Response<String>, name: &str) -> &'a str {
    response.headers().get(name).map_or("", |value| value.to_str().unwrap())
}

/// Counts the requests that reach it.
fn inner() -> (
    Arc<AtomicUsize>,
    impl Service<Request<String>, Response = Response<String>, Error = Infallible, Future: Send>
        + Clone
        + Send
        + 'static,
) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let service = service_fn(move |_: Request<String>| {
        counted.fetch_add(1, Relaxed);
        std::future::ready::<Never>(Ok(Response::new("done".into())))
    });
    (count, service)
}

#[tokio::test]
async fn what_is_denied_does_not_reach_the_service() {
    let limiter = MemoryLimiter::new();
    let layer = RateLimitLayer::new(&limiter, &Window::per("1/min").unwrap(), |_| Some("all"));
    let (count, service) = inner();
    let service =
        layer.name("site").unwrap().partition_key(|_| Some(b"acme".to_vec())).layer(service);
    let allowed = service.clone().oneshot(request()).await.unwrap();
    assert_eq!((allowed.status(), allowed.body().as_str()), (StatusCode::OK, "done"));
    assert_eq!(header(&allowed, "ratelimit-policy"), r#""site";q=1;w=60;pk=:YWNtZQ==:"#);
    assert_eq!(header(&allowed, "retry-after"), "");
    let denied = service.oneshot(request()).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&denied, "content-type"), "application/problem+json");
    assert_eq!(header(&denied, "retry-after"), "60");
    assert!(denied.body().contains(r#""violated-policies":["site"]"#), "{}", denied.body());
    assert!(!denied.extensions().get::<RateLimits>().unwrap().tightest().unwrap().is_allowed());
    assert_eq!(count.load(Relaxed), 1);
}

#[tokio::test]
async fn several_layers_on_a_request_end_in_one_set_of_headers() {
    let limiter = MemoryLimiter::new();
    let site = RateLimitLayer::new(&limiter, &Rate::per("100/min").unwrap(), |_| Some("site"));
    let (minute, day) = (Window::per("1/min").unwrap(), Window::per("9/day").unwrap());
    let search = RateLimitLayer::all(&limiter, move |_| {
        let clauses = [("minute", &minute), ("day", &day)];
        Some(clauses.map(|(name, window)| Clause::take(name, window).name(name)).to_vec())
    });
    let (_, service) = inner();
    let service = site.layer(search.layer(service));
    let allowed = service.clone().oneshot(request()).await.unwrap();
    let policies = r#""default";q=100;w=60, "minute";q=1;w=60, "day";q=9;w=86400"#;
    assert_eq!(header(&allowed, "ratelimit-policy"), policies);
    assert_eq!(header(&allowed, "x-ratelimit-limit"), "1");
    assert_eq!(allowed.headers().get_all("ratelimit").iter().count(), 1);
    assert_eq!(allowed.extensions().get::<RateLimits>().unwrap().replies().len(), 2);
    let denied = service.oneshot(request()).await.unwrap();
    assert_eq!(denied.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&denied, "ratelimit-policy"), policies);
    assert!(denied.body().contains(r#""violated-policies":["minute"]"#), "{}", denied.body());
}

#[tokio::test]
async fn a_limit_without_a_name_is_not_named_after_its_key() {
    let window = Window::new(0, std::time::Duration::from_secs(60));
    let layer = RateLimitLayer::all(&MemoryLimiter::new(), move |_| {
        let clause = |key| Clause::take(key, &window);
        Some(vec![clause("key:sk-1"), clause("key:sk-2").name("k\u{e4}"), clause("key:sk-3")])
    });
    let response = layer.layer(inner().1).oneshot(request()).await.unwrap();
    let policies = r#""limit-1";q=0;w=60, "k\\u{e4}";q=0;w=60, "limit-3";q=0;w=60"#;
    assert_eq!(header(&response, "ratelimit-policy"), policies);
    for text in [header(&response, "ratelimit"), response.body()] {
        assert!(text.contains("limit-1") && !text.contains("key"), "{text}");
    }
}

/// Returns the response to a request whose limits gave this result, and how many requests reached the service.
async fn answer(asked: Result<Reply, Error>) -> (Response<String>, usize) {
    let layer = RateLimitLayer::asking(Arc::new(move |_| {
        let asked = asked.clone().map(ReplyWithOptions::new);
        Some(Box::pin(std::future::ready(asked)))
    }));
    let (count, service) = inner();
    let response = layer.layer(service).oneshot(request()).await.unwrap();
    (response, count.load(Relaxed))
}

#[tokio::test]
async fn what_no_server_decides_is_answered_503_unless_it_is_allowed() {
    let cases = [
        (Ok(Reply::unreached(true)), 200),
        (Ok(Reply::unreached(false)), 503),
        (Err(Error::Busy("busy".into())), 503),
        (Err(Error::lost("redis:6379", "hung up", true)), 503),
        (Err(Error::quantity_of_zero()), 500),
    ];
    for (asked, status) in cases {
        let error = asked.as_ref().err().map(ToString::to_string);
        let (response, count) = answer(asked).await;
        assert_eq!(response.status(), status);
        assert_eq!(count, usize::from(status == 200));
        assert_eq!(header(&response, "ratelimit"), "");
        let reported = response.extensions().get::<Error>().map(ToString::to_string);
        assert_eq!(reported, error);
        if status == 503 {
            assert!(response.body().contains("temporary-reduced-capacity"));
        }
    }
}

/// A service of which only the instance that was ready may be called.
struct OnlyIfReady {
    is_ready: bool,
}

impl Clone for OnlyIfReady {
    fn clone(&self) -> OnlyIfReady {
        OnlyIfReady { is_ready: false }
    }
}

impl Service<Request<String>> for OnlyIfReady {
    type Response = Response<String>;
    type Error = Infallible;
    type Future = std::future::Ready<Never>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.is_ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<String>) -> Self::Future {
        assert!(std::mem::take(&mut self.is_ready), "it was not ready");
        std::future::ready(Ok(Response::new(String::new())))
    }
}

#[tokio::test]
async fn the_service_that_was_ready_is_the_one_that_is_called() {
    let layer = RateLimitLayer::new(&MemoryLimiter::new(), &Rate::per("9/s").unwrap(), |request| {
        (!request.headers.contains_key("free")).then_some("all")
    });
    let mut service = layer.layer(OnlyIfReady { is_ready: false });
    for is_limited in [true, false, true] {
        let mut request = request();
        if !is_limited {
            request.headers_mut().insert("free", HeaderValue::from_static("1"));
        }
        service.ready().await.unwrap().call(request).await.unwrap();
    }
}

#[cfg(feature = "axum")]
#[tokio::test]
async fn a_handler_of_axum_gets_the_replies_and_none_without_a_layer() {
    use axum_core::extract::FromRequestParts;

    let (mut parts, ()) = Request::new(()).into_parts();
    let none = RateLimits::from_request_parts(&mut parts, &()).await.unwrap();
    assert!(none.tightest().is_none());
    let limits = RateLimits::default();
    limits.lock().push(ReplyWithOptions::new(Reply::unreached(true)));
    parts.extensions.insert(limits);
    let some = RateLimits::from_request_parts(&mut parts, &()).await.unwrap();
    assert_eq!(some.replies().len(), 1);
}

#[test]
fn the_address_of_a_client_is_found_behind_whatever_it_wrote_in_the_header() {
    let mut headers = HeaderMap::new();
    for value in [&b"192.0.2.66"[..], b"\xff, 192.0.2.67, 2001:db8::1"] {
        headers.append("x-forwarded-for", HeaderValue::from_bytes(value).unwrap());
    }
    let peer = Some(IpAddr::from([10, 0, 0, 1]));
    let address = |proxies| client_address(peer, &headers, proxies, 64);
    assert_eq!([0, 1, 2].map(address), ["10.0.0.1", "2001:db8::/64", "192.0.2.67"]);
    assert_eq!(client_address(None, &HeaderMap::new(), 1, 64), "");
}
